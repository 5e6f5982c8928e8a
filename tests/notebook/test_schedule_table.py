"""The table that a reader edits: its law is Python's, and every edit is judged at once, with and without a kernel."""

import json
import random
from html import unescape

import pytest
from helpers import browser as browsers
from helpers.axe import CONTRAST, grave

from d2lps import cost, speak
from d2lps.messages import text
from d2lps.notebook.schedule_table import EDIT, edit
from d2lps.schedule import (
    Schedule,
    ScheduleError,
    from_csv,
    from_torch,
    gpipe,
    interleaved,
    one_f_one_b,
    pipeline,
    tensor_mlp,
    zero_bubble,
)
from d2lps.schedule.pipelines import SCHEDULES

chromium, new_page, quiet_page, opened = browsers.chromium, browsers.new_page, browsers.quiet_page, browsers.opened


def printed_by_torch(name: str = "1F1B", micro: int = 4) -> str:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining.schedules import _format_pipeline_order

    return _format_pipeline_order(dict(enumerate(get_schedule_ops(name, 4, micro))))


# ---------------------------------------------------------------- Python


def test_it_begins_with_a_name_a_table_or_a_schedule():
    for name, make in SCHEDULES.items():
        table = make(4, 8, 2) if name == "interleaved" else make(4, 8)
        shown = edit(name).table
        assert shown == edit(table).table == edit(pipeline(table)).table
        assert pipeline(shown) == pipeline(table) == edit(table).schedule
    assert [len(row) for row in edit("gpipe", 3, 2).rows] == [4, 4, 4]


def test_a_table_that_the_menus_offer_is_recognized():
    def settings(table) -> tuple:
        return tuple(edit(table).data[name] for name in ("kind", "micro", "chunks"))

    assert settings(pipeline(gpipe(3, 5))) == ("gpipe", 5, 2)
    assert settings(interleaved(2, 4, 3)) == ("interleaved", 4, 3)
    assert settings(zero_bubble(4, 16)) == ("zb-h1", 16, 2)
    assert (
        settings({0: [("F", 0), ("B", 0), ("F", 1), ("B", 1)], 1: [("F", 0), ("F", 1), ("B", 0), ("B", 1)]})[0] == "own"
    )
    assert settings(gpipe(9, 2))[0] == settings(gpipe(2, 17))[0] == settings({0: []})[0] == "own"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"schedule": "dapple"}, "'dapple' is not a schedule that the editor knows: write one of 'gpipe' '1f1b'"),
        ({"devices": 9}, "devices = 9: write a whole number from 1 to 8"),
        ({"micro": 0}, "micro = 0: write a whole number from 1 to 16"),
        ({"chunks": 1.5}, "chunks = 1.5: write a whole number from 2 to 4"),
        ({"room": 17}, "room = 17: write a whole number from 1 to 16"),
        ({"schedule": tensor_mlp(["a", "b"], hidden=2)}, "a Fmlp does not belong in the table of a pipeline"),
        ({"schedule": {1: [("F", 0)]}}, "does not belong in the table of a pipeline"),
        ({"schedule": Schedule(["a"], {}, []), "devices": True}, "devices = True"),
    ],
)
def test_an_unsuitable_schedule_is_refused(arguments, says):
    with pytest.raises(ScheduleError) as refused:
        edit(**arguments)
    assert says in str(refused.value)


def test_the_schedule_is_what_the_reader_has_made_of_it():
    shown = edit("gpipe", 2, 2)
    shown.rows = [
        [["F", 0, 0], ["F", 1, 0], ["B", 0, 0], ["B", 1, 0]],
        [["F", 0, 1], ["B", 0, 1], ["F", 1, 1], ["B", 1, 1]],
    ]
    assert shown.schedule == pipeline(one_f_one_b(2, 2))
    shown.rows = [row[:-1] for row in shown.rows]
    with pytest.raises(ScheduleError, match="gpu0 never does B0.1"):
        _ = shown.schedule
    assert repr(shown) == "<ScheduleTable: 2 devices, 6 tasks>"


def test_without_scripts_it_is_the_picture_of_the_schedule():
    assert "<svg" in edit("zb-h1", 3, 3)._repr_html_().split("<script")[0]
    assert "<svg" not in edit({0: [("B", 0)]})._repr_html_().split("<script")[0]
    assert set(edit()._repr_mimebundle_()[0]) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}


# ---------------------------------------------------------------- the law in JavaScript is that of Python


@pytest.fixture
def law(new_page):
    """Calls a function of the module: ``law("judge", rows)``."""
    page = new_page()
    code = EDIT[: EDIT.index("export default")].replace("export function", "function")
    page.set_content("<title>law</title>")
    page.add_script_tag(content=code + "Object.assign(window, { judge, read, MAKE });")
    return lambda name, *given: json.loads(
        page.evaluate(f"given => JSON.stringify(({name})(...given) ?? null)", list(given))
    )


def in_python(table: dict, room: int | None = None) -> dict:
    """Return what Python says of a table: the reason, or both bubbles and the peaks."""
    try:
        memory = {} if room is None else {f"gpu{device}": room for device in table}
        schedule = pipeline(table, memory=memory)
    except ScheduleError as error:
        return {"reason": error.reason}
    trace = cost.shared(schedule)
    bubbles = {"total": trace.bubble(), "relative": trace.bubble(relative=True), "length": trace.duration}
    return {"reason": None, "peaks": list(schedule.peak.values())} | bubbles


def rows_of(table: dict) -> list[list[list]]:
    return [[[*cell, device][:3] for cell in row] for device, row in table.items()]


def compare(said: dict, expected: dict) -> None:
    assert said["reason"] == expected["reason"]
    if said["reason"] is None:
        assert said["peaks"] == expected["peaks"] and said["length"] == expected["length"]
        for bubble in ("total", "relative"):
            assert said[bubble] == pytest.approx(expected[bubble], abs=1e-12)


def test_it_makes_the_same_schedules_and_judges_them_alike(law):
    made = 0
    for devices in (1, 2, 3, 4, 5, 8):
        for micro in (1, 2, 3, 4, 5, 8, 16):
            for name, make in SCHEDULES.items():
                for chunks in (2, 3, 4) if name == "interleaved" else (2,):
                    try:
                        table = make(devices, micro, chunks) if name == "interleaved" else make(devices, micro)
                    except ScheduleError:
                        table = None
                    rows = law(f'MAKE["{name}"]', devices, micro, chunks)
                    assert rows == (None if table is None else rows_of(table)), (name, devices, micro, chunks)
                    if table is not None and (devices * micro) % 7 < 3:
                        compare(law("judge", rows), in_python(table))
                    made += 1
    assert made > 200


def edited(table: dict, chance: random.Random) -> dict:
    """Return the table after one to three random edits, of which some keep it legal."""
    rows = [list(row) for row in rows_of(table)]
    for _ in range(chance.randint(1, 3)):
        device = chance.randrange(len(rows))
        if not rows[device]:
            continue
        at, what = chance.randrange(len(rows[device])), chance.random()
        cell = rows[device].pop(at)
        if what < 0.6:  # a step earlier or later
            rows[device].insert(max(0, at + chance.choice((-2, -1, 1, 2))), cell)
        elif what < 0.7:
            rows[device].insert(chance.randrange(len(rows[device]) + 1), cell)
        elif what < 0.8:
            other = chance.randrange(len(rows))
            rows[other].insert(chance.randrange(len(rows[other]) + 1), cell)
        elif what < 0.9:
            rows[device][at:at] = [cell, list(chance.choice(rows[device] or [cell]))]
        elif what < 0.95:
            rows[device].insert(at, [chance.choice("FBIW"), *cell[1:]])
    return {device: [tuple(cell) for cell in row] for device, row in enumerate(rows)}


def test_six_hundred_random_edits_are_judged_alike(law):
    chance, reasons = random.Random(13), set()
    tables = [gpipe(3, 4), one_f_one_b(4, 6), one_f_one_b(2, 2), interleaved(2, 4, 2), zero_bubble(3, 4), gpipe(1, 3)]
    for number in range(600):
        table, room = edited(tables[number % len(tables)], chance), chance.choice((None, None, 2, 3, 4))
        said, expected = law("judge", rows_of(table), room), in_python(table, room)
        compare(said, expected)
        reasons.add(said["reason"])
    assert reasons == {None, "two-homes", "backward-alone", "cell-missing", "cell-twice", "deadlock", "memory"}


def test_tables_of_torch_and_torchtitan_are_read_alike(law):
    texts = [
        "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n",
        "0F0,0X0\n",
        "",
        "nothing",
        "Rank 0 Rank 1\nhere\n",
        "0F0,None,0UNSHARD,0B0",
    ]
    texts += [printed_by_torch(), printed_by_torch("GPipe", 8), "(0F1;0B0)OVERLAP_F_B,0B1\n"]
    for written in texts:
        said = law("read", written)
        try:
            table = (from_torch if "Rank" in written else from_csv)(written)
        except ScheduleError as error:
            assert said["reason"] == error.reason, written
            continue
        assert said["rows"] == rows_of(table)
        compare(law("judge", said["rows"]), in_python(table))


# ---------------------------------------------------------------- in the browser


def line(page, device: int) -> list[str]:
    return page.locator(f"[data-at^='{device} ']").all_inner_texts()


def says(page) -> str:
    return page.locator(".d2-verdict").inner_text()


def facts(page) -> list[str]:
    return page.locator(".d2-facts b").all_inner_texts()


def peaks(page) -> list[str]:
    return page.locator("[role=gridcell].d2-grid-peak").all_inner_texts()


def menu(page, name: str):
    return page.get_by_role("combobox", name=name, exact=True)


def cell(page, device: int, number: int):
    return page.locator(f"[data-at='{device} {number}']")


def test_the_menus_choose_the_schedule_and_the_limit(opened):
    page = opened(edit(), 1000)
    assert facts(page) == ["27.3 %", "37.5 %", "22"] and peaks(page) == ["4", "3", "2", "1"]
    menu(page, "schedule").select_option("gpipe")
    menu(page, "micro-batches").select_option("4")
    assert facts(page) == ["42.9 %", "75 %", "14"] and peaks(page) == ["4"] * 4
    menu(page, "room for micro-batches").select_option("3")
    assert says(page) == "✗ gpu0 would save 4 micro-batches at F3, and has room for 3" and facts(page) == ["–"] * 3
    assert peaks(page) == ["4 / 3"] * 4
    menu(page, "schedule").select_option("interleaved")
    menu(page, "micro-batches").select_option("9")
    assert says(page).startswith("✗ 9 micro-batches on 4 devices cannot be interleaved")
    menu(page, "micro-batches").select_option("8")
    menu(page, "room for micro-batches").select_option("")
    assert facts(page)[0] == "15.8 %" and "F4.0" in line(page, 0)
    menu(page, "schedule").select_option("zb-h1")
    assert facts(page)[0] == "11.1 %" and {"I7", "W7"} <= set(line(page, 3))


def test_the_keyboard_chooses_moves_and_removes_cells(opened):
    page = opened(edit("gpipe", 2, 2), 1000)
    cell(page, 0, 0).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "F1"
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    assert line(page, 1) == ["F0", "B0", "F1", "B1"] and facts(page) == ["33.3 %", "50 %", "6"]
    assert peaks(page) == ["2", "1"] and page.locator("[aria-selected=true]").inner_text() == "F1"
    page.keyboard.press("ArrowRight")
    assert line(page, 1) == ["F0", "B0", "B1", "F1"] and page.locator(".d2-stuck").count() == 3
    assert says(page).endswith(
        "forever: B1 on gpu0 waits for B1 on gpu1; B1 on gpu1 waits for F1, later in the same row"
    )
    page.keyboard.press("Control+z")
    assert facts(page)[2] == "6"
    page.keyboard.press("Delete")
    assert says(page).startswith("✗ gpu1 does B1 without F1")
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Undo").click()
    assert line(page, 1) == ["F0", "F1", "B0", "B1"]
    cell(page, 0, 3).focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    assert says(page) == "✗ stage 0 is on gpu0 gpu1: a stage stays on one device"
    page.get_by_role("button", name="Start again").click()
    assert says(page).startswith("✓") and line(page, 0) == ["F0", "F1", "B0", "B1"]


def test_the_mouse_drags_cells(opened):
    page = opened(edit("gpipe", 2, 4), 1000)
    start, goal = cell(page, 1, 4).bounding_box(), cell(page, 1, 1).bounding_box()
    page.mouse.move(start["x"] + 15, start["y"] + 12)
    page.mouse.down()
    page.mouse.move(goal["x"] + 30, goal["y"] + 10, steps=4)
    page.mouse.move(goal["x"] + 5, goal["y"] + 10)
    assert page.locator(".d2-dragged").count() == 1
    page.mouse.up()
    assert line(page, 1) == ["F0", "B0", "F1", "F2", "F3", "B1", "B2", "B3"]
    assert says(page).startswith("✓") and peaks(page)[1] == "3"
    assert page.evaluate("document.activeElement.textContent") == "B0"
    start, goal = cell(page, 0, 0).bounding_box(), cell(page, 1, 0).bounding_box()
    page.mouse.move(start["x"] + 15, start["y"] + 12)
    page.mouse.down()
    page.mouse.move(goal["x"] + 15, goal["y"] + 12, steps=4)
    page.mouse.up()
    assert "stage 0 is on" in says(page) and len(line(page, 1)) == 9
    page.mouse.move(start["x"] + 15, start["y"] + 12)
    page.mouse.down()
    page.mouse.move(start["x"] + 60, start["y"] + 400, steps=4)  # beside the table: nothing moves
    page.mouse.up()
    assert len(line(page, 1)) == 9


def test_buttons_move_the_chosen_cell_without_keys_or_dragging(opened):
    page = opened(edit("gpipe", 2, 2), 1000)
    cell(page, 1, 1).click()
    page.get_by_role("button", name="Later").click()
    assert line(page, 1) == ["F0", "B0", "F1", "B1"]
    page.get_by_role("button", name="Earlier").click()
    page.get_by_role("button", name="To the device above").click()
    assert "stage 1 is on" in says(page)
    page.get_by_role("button", name="Remove the cell").click()
    assert sum(len(line(page, device)) for device in (0, 1)) == 7


def test_schedules_of_torch_are_read_and_impossible_ones_are_refused(opened):
    page = opened(edit(paste=printed_by_torch()), 1000)
    page.locator("summary").click()
    page.get_by_role("button", name="Read this table").click()
    assert line(page, 3) == ["F1", "B0", "F2", "B1", "F3", "B2", "F4", "B3"]
    assert says(page) == "✗ gpu3 does B0 without F0, the forward pass whose activations it needs"
    page.locator("textarea").fill("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n")
    page.get_by_role("button", name="Read this table").click()
    assert says(page).startswith("✓") and facts(page)[2] == "6" and line(page, 1) == ["F0", "B0", "F1", "B1"]
    page.locator("textarea").fill("0F0,0Q0")
    page.get_by_role("button", name="Read this table").click()
    assert says(page) == "✗ rank 0, step 1: '0Q0' is not a task such as 0F3 (stage, kind, micro-batch)"
    page.locator("textarea").fill("<img src=x onerror=alert(1)>")
    page.get_by_role("button", name="Read this table").click()
    assert "<img src=x onerror=alert(1)>" in says(page)


def test_editor_speaks_the_language_and_has_no_grave_faults(opened):
    speak("vi")
    shown = edit("zb-h1", 4, 4, room=4)
    for width, scheme in ((1200, "light"), (380, "dark")):
        page = opened(shown, width, color_scheme=scheme)
        page.locator("summary").click()
        assert text("edit.legal", slots=15) in unescape(says(page))
        assert page.locator(".d2-edit").get_attribute("lang").startswith("vi")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert grave(page, rules=CONTRAST if scheme == "dark" else ()) == []
        cell(page, 2, 3).focus()
        page.keyboard.press("Delete")
        assert says(page).startswith("✗") and grave(page, rules=CONTRAST) == []


def test_every_edit_reaches_the_kernel(new_page):
    shown, page = edit("gpipe", 2, 2), new_page()
    page.set_content("<title>widget</title><div id=here></div>")
    page.add_script_tag(
        content=EDIT.replace("export default", "window.widget =").replace("export function", "function")
    )
    page.evaluate(
        """data => { window.sent = [];
        const set = (name, value) => { model[name] = value; }, save_changes = () => sent.push(model.rows);
        const model = { get: () => data, set, save_changes };
        widget.render({ model, el: document.getElementById("here") }); }""",
        shown.data,
    )
    assert page.evaluate("sent") == []
    cell(page, 1, 1).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    (rows,) = page.evaluate("sent")
    shown.rows = rows
    assert shown.schedule == pipeline(one_f_one_b(2, 2))
