"""Lists deployed Modal apps that may be task apps. It queries Modal's control plane, not the apps."""

from __future__ import annotations

from dataclasses import dataclass

from taskapp_kit.deploy.modal.modal_settings import WEB_FUNCTION
from taskapp_kit.errors import ConfigError, Unavailable


@dataclass(frozen=True, slots=True)
class DeployedApp:
    """A deployed Modal app with a web function named `web`. `url` is its address, without a trailing slash."""

    name: str
    url: str


def deployed_apps(environment: str = "") -> list[DeployedApp]:
    """Return the deployed apps in a Modal environment that may be task apps, sorted by name.

    Args:
        environment: Name of the Modal environment, or "" for the default environment.

    Raises:
        Unavailable: Modal's client is not installed.
        ConfigError: This machine is not signed in to Modal, or Modal cannot be reached.
    """
    try:
        import modal
        from modal.exception import AuthError, Error, NotFoundError
        from modal.experimental import list_deployed_apps
    except ImportError as error:
        raise Unavailable("Modal's client is not installed.", hint="Run: pip install 'taskapp-kit[modal]'") from error
    try:
        found = []
        for info in list_deployed_apps(environment):
            try:
                url = modal.Function.from_name(
                    info.name, WEB_FUNCTION, environment_name=environment or None
                ).get_web_url()
            except NotFoundError:
                continue  # the app has no function `web`
            if url:
                found.append(DeployedApp(info.name, url.rstrip("/")))
    except AuthError as error:
        raise ConfigError("This machine is not signed in to Modal.", hint="Run: modal setup") from error
    except (Error, OSError) as error:
        raise ConfigError(
            f"Modal could not list the deployed apps ({type(error).__name__}).",
            hint="Check the network connection and `modal app list`, or pass the address with --task-url.",
        ) from error
    return sorted(found, key=lambda app: app.name)
