"""Finding deployed task apps: Modal's own client asks a control plane on loopback."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.deploy.control_plane import ControlPlane, unary  # type: ignore[import-not-found]
from tests.deploy.deploys import Deploy, run

pytestmark = [pytest.mark.process, pytest.mark.server]


class Workspace(ControlPlane):
    """A workspace with some deployed apps: name to the address of its `web` function, None when it has none."""

    def __init__(self, apps: Mapping[str, str | None], *, signed_in: bool = True) -> None:
        super().__init__({})
        self.apps = apps
        self.signed_in = signed_in

    @unary
    def AppList(self, request: Any) -> api_pb2.AppListResponse:
        if not self.signed_in:
            raise GRPCError(Status.UNAUTHENTICATED, "Token missing")
        items = [
            api_pb2.AppListResponse.AppListItem(app_id=f"ap-{name}", description=name, state=api_pb2.APP_STATE_DEPLOYED)
            for name in self.apps
        ]
        stopped = api_pb2.AppListResponse.AppListItem(app_id="ap-0", description="old", state=api_pb2.APP_STATE_STOPPED)
        return api_pb2.AppListResponse(apps=[*items, stopped])

    @unary
    def FunctionGet(self, request: Any) -> api_pb2.FunctionGetResponse:
        url = self.apps.get(request.app_name)
        if url is None or request.object_tag != "web":
            raise GRPCError(Status.NOT_FOUND, "No such function")
        handle = api_pb2.FunctionHandleMetadata(function_name="web", web_url=url)
        function = api_pb2.FunctionData(
            function_name="web",
            web_url=url,
            ranked_functions=[api_pb2.FunctionData.RankedFunction(function=api_pb2.Function(function_name="web"))],
        )
        return api_pb2.FunctionGetResponse(function_id="fu-1", handle_metadata=handle, function=function)


def setup(folder: Path, workspace: ControlPlane, **variables: str) -> Deploy:
    return run(workspace, folder, "-m", "taskapp_kit", "setup", "--discover", **variables)


def test_the_one_deployed_task_app_goes_into_the_env_file(tmp_path: Path) -> None:
    with Workspace({"mine": "https://w--mine-web.modal.run", "a-cron-job": None}).running() as workspace:
        done = setup(tmp_path, workspace, SYNTH_API_KEY="sk_of_the_backend")
    assert done.code == 0, done.err
    text = (tmp_path / ".env").read_text()
    assert "TASK_APP_URL=https://w--mine-web.modal.run\n" in text
    assert "SYNTH_API_KEY=sk_of_the_backend\n" in text
    minted = re.search(r"^ENVIRONMENT_API_KEY=([0-9a-f]{64})$", text, re.MULTILINE)
    assert minted is not None
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    shown = done.output
    assert minted[1] not in shown
    assert "sk_of_the_backend" not in shown


def test_several_are_told_by_name_where_nobody_can_be_asked(tmp_path: Path) -> None:
    apps = {"one": "https://w--one-web.modal.run", "two": "https://w--two-web.modal.run"}
    with Workspace(apps).running() as workspace:
        done = setup(tmp_path, workspace)
    assert done.code == 2
    assert "one, two" in done.err
    assert "--task-url" in done.err
    assert not (tmp_path / ".env").exists()


@pytest.mark.parametrize(
    ("apps", "signed_in", "words"), [({}, True, "taskapp deploy"), ({"one": "https://x.example"}, False, "modal setup")]
)
def test_what_is_missing_is_told(tmp_path: Path, apps: dict[str, str | None], signed_in: bool, words: str) -> None:
    with Workspace(apps, signed_in=signed_in).running() as workspace:
        done = setup(tmp_path, workspace)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
