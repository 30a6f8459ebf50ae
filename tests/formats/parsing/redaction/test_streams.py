"""Redaction of files piece by piece, against whole texts, and of environments (hypothesis looks for leaks)."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.formats.parsing.redaction import (
    MEASURED_VARIABLES,
    RANK_VARIABLES,
    REDACTED,
    redacted_pieces,
    safe_environment,
    safe_environment_block,
    safe_environment_text,
    safe_setting,
    safe_variable,
)
from aaco_pipeline.formats.parsing.redaction.text import LONGEST
from tests.formats.parsing.redaction.secret_shapes import shapes
from tests.places import SHARED

TOKEN = b"hf_" + b"aB3dE6gH9jK2mN5pQ8sT1"


def passed(content: bytes, size: int = 1 << 20) -> tuple[bytes, int]:
    cleaned = list(redacted_pieces([content[at : at + size] for at in range(0, len(content), size)]))
    return b"".join(clean for clean, _ in cleaned), sum(hits for _, hits in cleaned)


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_a_secret_across_two_pieces_is_found_whole(shift: int) -> None:
    content = b"x" * (100_000 - shift) + b" " + TOKEN + b" " + b"y" * 200_000
    clean, hits = passed(content, 100_000)
    assert clean == content.replace(TOKEN, b"redacted")
    assert hits == 1


@pytest.mark.parametrize("before_seam", [b"", b"hun"])
@pytest.mark.parametrize(
    "announcing",
    [b" DB_PASSWORD=", b'"password": "', b"\nmysql -u root -p", b"\nmysql " + b"a " * 900 + b"-p", b"\nmysql -u root "],
    ids=lambda text: text[-16:],
)
def test_what_announces_a_secret_counts_also_when_the_piece_before_ended_there(
    announcing: bytes, before_seam: bytes
) -> None:
    secret = b"-phunter2xQ9" if announcing.endswith(b"root ") else b"hunter2xQ9"
    content = b"x\n" * 40_000 + announcing + secret + b'"\n' + b"y\n" * 60_000
    # The end of a piece waits for the next: what waits begins here behind the name.
    seam = content.index(announcing) + len(announcing + before_seam) + LONGEST
    cleaned = list(redacted_pieces([content[:seam], content[seam:]]))
    assert b"".join(clean for clean, _ in cleaned) == content.replace(b"hunter2xQ9", b"redacted")
    assert sum(hits for _, hits in cleaned) == 1


@given(st.integers(20_000, 120_000), st.lists(st.integers(0, 120_000), min_size=1, max_size=4))
def test_where_a_file_is_cut_into_pieces_changes_nothing(size: int, places: list[int]) -> None:
    content = b"x\n" * 60_000
    for at in places:
        secret = b"\nmysql -u root -phunter2xQ9 --password=hunter2xQ9 https://me:hunter2xQ9@host/ 4\n"
        content = content[:at] + secret + content[at:]
    assert passed(content, size) == passed(content, len(content))


@pytest.mark.parametrize("waiting", range(0, 16, 3))
def test_the_longest_command_of_a_document_is_found_wherever_the_piece_ends(waiting: int) -> None:
    command = json.dumps(["mysql", "-phunter2xQ9", ""]).encode()
    command = command[:-2] + b"a" * (LONGEST - len(command)) + command[-2:]
    key = b'{"command": '
    content = b"x\n" * 40_000 + key + command + b"}\n" + b"y\n" * 60_000
    seam = content.index(key) + waiting + LONGEST
    cleaned = list(redacted_pieces([content[:seam], content[seam:]]))
    assert b"".join(clean for clean, _ in cleaned) == content.replace(b"hunter2xQ9", b"redacted")
    assert sum(hits for _, hits in cleaned) == 1


def test_what_holds_no_secret_is_not_touched() -> None:
    content = b'{"name": "token_softmax<float>", "args": {"tokens": 5, "uri": "memory://9#offset=1"}},\n' * 20_000
    assert passed(content, 300_000) == (content, 0)


def test_a_command_and_an_environment_in_json_are_treated_as_such() -> None:
    document = {
        "command": ["python", "t.py", "-p", "hunter2", "-u", "x", "--n", "1"],
        "environment": {"HOME": "/home/me", "HSA_XNACK": "0", "OTHER": "hunter2"},
        "args": {"cmdline": "mysql -phunter2 db", "password": 12345678, "n": 4},
    }
    clean, hits = passed(json.dumps(document).encode())
    assert b"hunter2" not in clean
    assert hits == 4
    assert json.loads(clean) == {
        "command": ["python", "t.py", "-p", "redacted", "-u", "x", "--n", "1"],
        "environment": {"HSA_XNACK": "0"},
        "args": {"cmdline": "mysql -predacted db", "password": 0, "n": 4},
    }


def test_a_column_of_commands_or_of_secrets_in_a_table_is_cleaned() -> None:
    table = b'name,value,command,db_password\nHF_TOKEN,hunter22,"app -u x -p ""hunter2x""",open sesame\nrocm,6.4,x,\n'
    clean, hits = passed(table)
    assert hits == 3
    assert b"hunter" not in clean
    assert b"sesame" not in clean
    assert clean.endswith(b"\nrocm,6.4,x,\n")


#: Kinds of files around a line of text; `%s` is the line as JSON.
DOCUMENTS = ('{"args": {"note": %s, "n": 1}}', '[{"name": %s, "ts": 4}]', "remaining:\n  - %s\nother: 1\n", "a,%s,4\n")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_shape_of_a_secret_stays_in_a_text_of_a_document(document: str) -> None:
    for line, secret in shapes(3):
        if line == "app {}":
            continue  # a key that nothing announces may be a name there
        quoted = json.dumps(line.replace("{{", "{").replace("}}", "}").replace("{}", secret))
        clean = passed((document % quoted).encode())[0].decode()
        assert json.dumps(secret)[1:-1] not in clean, line
        if document.startswith(("{", "[")):
            json.loads(clean)


def cell(line: str) -> str:
    doubled = line.replace('"', '""')
    return f'Domain,Function,Process_Id,Start\n"MARKER","{doubled}",1,1\n'


def cut_at_blanks(line: str) -> str:
    return json.dumps({"metadata": {"command": line.split()}})


@pytest.mark.parametrize("written", [cell, cut_at_blanks])
def test_no_shape_stays_in_a_tables_cell_nor_in_a_line_cut_at_its_blanks(written: Callable[[str], str]) -> None:
    for line, secret in shapes(6):
        if line == "app {}" or "IDENTIFIED BY" in line:
            continue  # nobody announces the key, and nobody cuts SQL
        text = written(line.replace("{{", "{").replace("}}", "}").replace("{}", secret))
        clean = passed(text.encode())[0].decode()
        assert json.dumps(secret)[1:-1] not in clean, line


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "", "user": "alice", "note": ""}',
        'a,b\n"password: ""","x"\n',
        '{"fields": ["name:", "kind:", "value:"]}',
    ],
)
def test_quotes_around_nothing_and_lists_of_headings_are_kept(text: str) -> None:
    assert passed(text.encode()) == (text.encode(), 0)


@pytest.mark.parametrize(
    "text",
    [
        "mkdir -p out/trace",
        "tar -C a -k -b 20",
        "ssh -p 22 -i key -u host",
        "void k<(-1 - -p)>(int)",
        "zip -P",
        " login ",
    ],
)
def test_a_text_that_looks_like_a_command_is_kept(text: str) -> None:
    content = json.dumps({"name": text}).encode()
    assert passed(content) == (content, 0)


@pytest.mark.parametrize("folder", ["documentation_csv", "gfx1151_rocprofv3_csv", "mi300_pc_sampling_code_json"])
def test_real_captures_pass_unchanged(folder: str) -> None:
    files = sorted((SHARED / "captures" / folder).glob("*"))
    if not files:
        pytest.skip("the shared captures are not here")
    for file in files:
        content = file.read_bytes()
        assert passed(content) == (content, 0), file


def test_only_listed_variables_are_kept_in_order_of_name() -> None:
    kept = safe_environment({"ROCR_VISIBLE_DEVICES": "0", "HOME": "/home/me", "HIP_VISIBLE_DEVICES": "1", "PS1": ">"})
    assert list(kept.items()) == [("HIP_VISIBLE_DEVICES", "1"), ("ROCR_VISIBLE_DEVICES", "0")]


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_nothing_outside_the_list_passes(variables: dict[str, str]) -> None:
    assert set(safe_environment(variables)) <= set(MEASURED_VARIABLES)


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "a1B2" * 9,
        "AKIAIOSFODNN7EXAMPLE",
        "https://me:pw@host/x",
        "token=hunter2",
        "sshpass -p hunter2 ssh",
        "x" * 201,
    ],
)
def test_a_listed_variable_with_a_secret_keeps_its_name_alone(secret: str) -> None:
    kept = safe_environment({"NCCL_DEBUG": secret})["NCCL_DEBUG"]
    assert REDACTED in kept
    assert secret not in kept


def test_an_empty_variable_is_said_to_be_empty() -> None:
    assert safe_variable("") == "(empty)"


def test_an_environment_as_text_keeps_ranks_and_is_else_empty() -> None:
    stated = json.dumps({"RANK": "3", "HOME": "/home/me", "HIP_VISIBLE_DEVICES": "1", "SLURM_PROCID": "hunter2"})
    assert json.loads(safe_environment_text(stated)) == {"HIP_VISIBLE_DEVICES": "1", "RANK": "3"}
    for damaged in ("", "[1]", "{", "[" * 100_000, "HOME=/home/me"):
        assert safe_environment_text(damaged) == "{}"


def test_an_environment_that_may_be_kept_is_not_touched() -> None:
    assert safe_environment_text('{"HSA_XNACK":"0"}') == '{"HSA_XNACK":"0"}'


@pytest.mark.parametrize(
    ("assigned", "kept"),
    [
        ('OMP_NUM_THREADS="2"', 'OMP_NUM_THREADS="2"'),
        ('LD_PRELOAD=""', 'LD_PRELOAD=""'),
        ('SLURM_PROCID="3"', 'SLURM_PROCID="3"'),
        ('SLURM_PROCID="hunter2"', REDACTED),
        ('HOME="/home/me"', REDACTED),
        ('NCCL_DEBUG="token=hunter2"', 'NCCL_DEBUG="token=redacted"'),
        ("no variable", REDACTED),
    ],
)
def test_a_row_of_settings_that_is_a_variable_keeps_it_where_it_may_be_kept(assigned: str, kept: str) -> None:
    assert safe_setting("PROCESS_0:ENVIRONMENT_VARIABLE", assigned) == kept


def test_settings_with_a_whole_environment_and_others() -> None:
    assert safe_setting("DeviceEnvironment", "HOME=/home/me;HIP_VISIBLE_DEVICES=1;LS_COLORS=a=1;b=2") == (
        "HIP_VISIBLE_DEVICES=1"
    )
    assert safe_setting("DeviceEnvironment", "hunter2") == ""
    assert safe_setting("db_password", "hunter2x") == REDACTED
    assert safe_setting("Hostname", "node7") == "node7"


def test_an_environment_as_the_system_keeps_it_is_reduced_and_other_texts_stay() -> None:
    assert safe_environment_block("HOME=/home/me\0RANK=3\0PS1=>\0HSA_XNACK=0") == "RANK=3\0HSA_XNACK=0"
    for other in ("", "HOME=/home/me", "python\0train.py\0--lr=1", "a\0b\0c=1"):
        assert safe_environment_block(other) == other


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,12}", fullmatch=True), st.text(st.characters(exclude_characters="\0"))))
def test_no_variable_outside_the_list_stays_in_a_block(variables: dict[str, str]) -> None:
    kept = safe_environment_block("\0".join(f"{name}={value}" for name, value in variables.items()))
    if len(variables) > 1:
        assert {part.partition("=")[0] for part in kept.split("\0") if part} <= {*MEASURED_VARIABLES, *RANK_VARIABLES}
