"""Random numbers as a pure function of (seed, position, stream): Philox4x32-10, without state.

The generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011). As no state is carried along, a retried, moved or preempted request draws the very
same numbers at the same positions.
"""

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_ROUNDS = 10
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85

Words4 = tuple[int, int, int, int]


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Map a 128-bit counter to 128 random bits under a 64-bit key, as 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK32,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK32,
        )
        k0 = (k0 + _WEYL_0) & _MASK32
        k1 = (k1 + _WEYL_1) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A number of [0, 1) with 53 random bits; all arguments count modulo 2**64."""
    seed, position, stream = seed & _MASK64, position & _MASK64, stream & _MASK64
    counter = (position & _MASK32, position >> 32, stream & _MASK32, stream >> 32)
    first, second, _, _ = philox4x32(counter, (seed & _MASK32, seed >> 32))
    return ((first >> 5) * 2.0**26 + (second >> 6)) * 2.0**-53
