"""A task app on Modal: `modal deploy modal_app.py`. Create the Secret first (docs/operate/modal.md).

For your own app, change the path of its file (relative to this file) and the name. `taskapp deploy` does the same without
this file.
"""

import modal

from taskapp_kit.deploy.modal import Deployment, ModalSettings

DEPLOYMENT = Deployment("crafter", ModalSettings(app_name="taskapp-crafter", store="none"), beside=__file__)
app = DEPLOYMENT.app


@app.function(**DEPLOYMENT.function)
@modal.concurrent(**DEPLOYMENT.concurrency)
@modal.asgi_app(**DEPLOYMENT.web)
def web() -> object:
    """Return one container's server. The app is imported here, when the container has its keys."""
    return DEPLOYMENT.serve()
