"""Sends what the OpenAPI page allows, and what it does not, to every endpoint; see `hooks.py`.

BATON_API_EXAMPLES is the number of requests for each endpoint.
"""

import os
import pathlib
import subprocess
import sys

import hooks
import stage

url = os.environ["BATON_URL"]
examples = os.environ.get("BATON_API_EXAMPLES", "5")
command = [
    pathlib.Path(sys.executable).with_name("schemathesis"), "run", f"{url}/openapi.json",
    "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance",
    "--phases", "examples,coverage,fuzzing",
    "--max-examples", examples,
    "--seed", os.environ.get("BATON_API_SEED", "1"),
    "--request-timeout", "60",
    "--exclude-path", "/api/push",
    "--suppress-health-check", "all",
    "--no-color",
]
log = stage.HOME.parent / "api.log"
done = subprocess.run(
    command, env=os.environ | {"SCHEMATHESIS_HOOKS": "hooks"}, stdout=log.open("w"), stderr=subprocess.STDOUT
)
lines = log.read_text().splitlines()
names = [model["name"] for model in stage.ask(url, "GET", "/api/tags")[1]["models"]]
assert hooks.MODEL + ":latest" in names, "the model that is tested with is gone: nothing was tested"
print("\n".join(lines[-25:] if done.returncode == 0 else lines[-400:]))
sys.exit(done.returncode)
