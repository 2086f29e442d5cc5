"""What a client falls back to is what its test says."""

from tests.client.conftest import _an_environment_without_addresses_and_keys  # noqa: F401
