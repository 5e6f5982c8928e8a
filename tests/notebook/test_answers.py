"""Answers to every exercise: right ones pass, and each wrong one gets the hint for its mistake, in three languages.

Each is judged once; the verdict is then shown in all languages. The answers of a chapter stand in its own file.
"""

import test_exercises_01
import test_exercises_02
import test_exercises_03
import test_exercises_04
import test_exercises_05
import test_exercises_06
import test_exercises_06b
import test_exercises_07
import test_exercises_08
import test_exercises_09
import test_exercises_10
import test_exercises_11
import test_exercises_12
import test_exercises_13
from helpers.exercises import EXERCISES, LONG, TRACED

TABLES = [
    test_exercises_01,
    test_exercises_02,
    test_exercises_03,
    test_exercises_04,
    test_exercises_05,
    test_exercises_06,
    test_exercises_06b,
    test_exercises_07,
    test_exercises_08,
    test_exercises_09,
    test_exercises_10,
    test_exercises_11,
    test_exercises_12,
    test_exercises_13,
]
IDS = tuple(EXERCISES)
RIGHT = {id: answers for table in TABLES for id, answers in table.RIGHT.items()}
MEASURED = {id: parts for table in TABLES for id, parts in getattr(table, "MEASURED", {}).items()}
PLAYED = [id for id in IDS if id not in (*TRACED, *LONG)]  # whose judges play the answer, or compare its result
CASE = r"([kmnp]|len\((sizes|costs|ids)\)) = \d"  # how a sentence begins
# The mistakes whose hints are those of all exercises.
COMMON = {"differs", "endless", "not-general", "nothing-returned", "raised", "wrong-type"}
