"""What commands print as JSON, beside their schemas."""

import json
from importlib import resources

import jsonschema


def valid(found: object, schema: str) -> None:
    """Raise ValidationError unless ``found`` is what a schema of the package describes.

    Args:
        found: What a command printed.
        schema: The path of the schema in the package.
    """
    described = json.loads(resources.files("d2lps").joinpath(*schema.split("/")).read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(described)
    jsonschema.validate(found, described)
