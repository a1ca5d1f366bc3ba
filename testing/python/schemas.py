"""The JSON that weightlift promises, as schemas."""

import json
from pathlib import Path

import jsonschema

FOLDER = Path(__file__).resolve().parent.parent / "schema"


def _validator(name: str):
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


NAMES = ["load", "inspect", "bench", "doctor", "manifest", "verify", "error"]
VALIDATORS = {name: _validator(name) for name in NAMES}


def check(name: str, value):
    """Fails with every place where the value is not what the schema says."""
    problems = [
        f"{error.json_path}: {error.message}" for error in VALIDATORS[name].iter_errors(value)
    ]
    assert not problems, f"not {name}.schema.json:\n" + "\n".join(problems[:20])
    return value
