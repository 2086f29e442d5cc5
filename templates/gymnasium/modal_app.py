"""__app_title__ on Modal: `taskapp deploy __app_name__.py --create-secret`, or `modal deploy modal_app.py`.

It requires `pip install 'taskapp-kit[modal]'`. `modal deploy` also requires that the Secret exists. The settings are in
pyproject.toml under [tool.taskapp.modal].
"""

import modal

from taskapp_kit.deploy.modal import Deployment

DEPLOYMENT = Deployment("__app_name__.py", beside=__file__)
app = DEPLOYMENT.app


@app.function(**DEPLOYMENT.function)
@modal.concurrent(**DEPLOYMENT.concurrency)
@modal.asgi_app(**DEPLOYMENT.web)
def web() -> object:
    """Return the server of a container. The app is imported in this function, when the container's keys are set."""
    return DEPLOYMENT.serve()
