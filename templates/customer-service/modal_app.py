"""__app_title__ on Modal: `taskapp deploy __app_name__.py --create-secret`, or `modal deploy modal_app.py` (needs the Secret).

Needs `pip install 'taskapp-kit[modal]'`. Settings are in pyproject.toml under [tool.taskapp.modal].
"""

import modal

from taskapp_kit.deploy.modal import Deployment

DEPLOYMENT = Deployment("__app_name__.py", beside=__file__)
app = DEPLOYMENT.app


@app.function(**DEPLOYMENT.function)
@modal.concurrent(**DEPLOYMENT.concurrency)
@modal.asgi_app(**DEPLOYMENT.web)
def web() -> object:
    """One container's server. The app is imported here, when the container has its keys."""
    return DEPLOYMENT.serve()
