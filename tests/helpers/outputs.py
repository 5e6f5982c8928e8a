"""How the outputs of two notebooks differ."""

import nbformat


def same_outputs(a: nbformat.NotebookNode, b: nbformat.NotebookNode) -> list[str]:
    """How the outputs of two executed notebooks differ in structure, and every error in either.

    Streams count once per name, as Jupyter splits them as it likes; texts and numbers are not compared.
    """
    differences = []
    codes = [[cell for cell in made.cells if cell.cell_type == "code"] for made in (a, b)]
    ids = [[cell.get("id") for cell in cells] for cells in codes]
    if ids[0] != ids[1]:
        differences.append(f"the code cells differ: {ids[0]} and {ids[1]}")
    for which, cells in zip(("first", "second"), codes, strict=True):
        for cell in cells:
            differences += [
                f"{cell.get('id')}: the {which} notebook shows the error {output.ename}: {output.evalue}"
                for output in cell.outputs
                if output.output_type == "error"
            ]
    for left, right in zip(*codes, strict=False):
        shapes = [_shape(cell.outputs) for cell in (left, right)]
        if shapes[0] != shapes[1]:
            differences.append(f"{left.get('id')}: outputs {shapes[0]} and {shapes[1]}")
    return differences


def _shape(outputs: list) -> list[str]:
    shape: list[str] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name not in shape:
                shape.append(output.name)
        else:
            shape.append(f"{output.output_type} {' '.join(sorted(output.get('data', {})))}".strip())
    return shape
