"""Numbers of bytes as people write them: 2147483648, 2GiB, 512 MB."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, TypeAdapter, ValidationError

_SIZES = TypeAdapter(ByteSize)


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return int(_SIZES.validate_python(value))
    except ValidationError:
        raise ValueError(f"{value!r} is no number of bytes; write 2147483648 or 2GiB") from None


# An int; 1 GiB is 1024 MiB, 1 GB is 1000 MB.
ByteCount = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str)]
