"""A task app on Modal: `modal deploy modal_app.py` (docs/modal.md: the Secret first).

For an app of your own change TARGET to the path of its file (from here), and the name.
"""

import modal

from taskapp_kit.deploy.modal import ModalSettings, build_image, function_options, load_task_app

TARGET = "crafter"
SETTINGS = ModalSettings(app_name="taskapp-crafter")

app = modal.App(SETTINGS.app_name, image=build_image(TARGET, SETTINGS, beside=__file__))


@app.function(**function_options(SETTINGS))
@modal.concurrent(max_inputs=SETTINGS.max_inputs, target_inputs=SETTINGS.target_inputs)
@modal.asgi_app()
def web() -> object:
    """One container's server. The app is imported here, so that deploying needs none of its packages."""
    return load_task_app(TARGET, beside=__file__).asgi()
