"""The doctor checks whether an environment is sound. `taskapp doctor APP` and `pytest --taskapp APP` run it.

async for finding in examine(find_app("adder.py")):
    print(finding.name, finding.status, finding.found, finding.do)
"""
