"""__app_title__ on Modal: `modal secret create __app_name__-env --from-dotenv .env`, then `modal deploy modal_app.py`.

Needs `pip install 'taskapp-kit[modal]'`; `.env` holds ENVIRONMENT_API_KEY=...
"""

import modal

from taskapp_kit.deploy.modal import ModalSettings, build_image, function_options, load_task_app

TARGET = "__app_name__.py"
SETTINGS = ModalSettings(app_name="__app_name__")

app = modal.App(SETTINGS.app_name, image=build_image(TARGET, SETTINGS, beside=__file__))


@app.function(**function_options(SETTINGS))
@modal.concurrent(max_inputs=SETTINGS.max_inputs, target_inputs=SETTINGS.target_inputs)
@modal.asgi_app()
def web() -> object:
    """One container's server; the app is imported here, so that deploying needs none of its packages."""
    return load_task_app(TARGET, beside=__file__).asgi()
