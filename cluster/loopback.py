"""Tells addresses that only this machine reaches from those that others may reach."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Of names only `localhost` is one: what others resolve to is not looked up."""
    name = host.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
