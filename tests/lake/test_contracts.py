"""The contracts hold what the public interface promises, and each declaration is complete and consistent.

The page generated from them is tested in `test_views`.
"""

from pathlib import Path
from typing import Final

import duckdb
import polars as pl
import pytest

from aaco_pipeline.lake.contracts import all_tables, contract, polars_dtype, polars_schema, polars_types
from aaco_pipeline.lake.declaration import DUCKDB_TYPES, Column, Table

#: The public interface, written down apart from the declarations: every table with the columns it must have.
PUBLIC: Final[dict[str, str]] = {
    # What was run
    "sessions": """source_kind source_format workload model_name model_sha256 backend provider precision batch_size
        campaign_id arm block started_at host fingerprint capture_digest""",
    "environment": "category key value in_fingerprint",
    "devices": """device_id vendor arch product compute_units xcc_count simd_per_cu wavefront_size max_clock_mhz
        memory_clock_mhz memory_bytes memory_bus_bits l2_bytes lds_bytes partition_mode power_cap_w handle""",
    "processes": "process_id guid host pid rank command",
    "clock_domains": "domain offset_ns uncertainty_ns anchor",
    "evidence": "stage item status reason source rows sha256",
    # Model
    "model_nodes": "node_id name op_type domain inputs outputs flops read_bytes written_bytes shape_source",
    "model_edges": "from_node_id to_node_id tensor dtype shape",
    # Inference
    "iterations": "pass iteration phase start_ns end_ns latency_ns cpu_time_ns run_delay_ns token_index",
    "iteration_gaps": "pass before_iteration phase start_ns end_ns duration_ns reads_counters",
    "iteration_blocks": "pass block phase first_iteration iterations start_ns end_ns cpu_time_ns run_delay_ns",
    "session_metrics": "metric pass phase value unit n ci_low ci_high",
    # Trace
    "kernels": """kernel_id name short_name fingerprint family library dtype tile role family_source arch_vgprs
        accum_vgprs sgprs static_lds_bytes static_scratch_bytes""",
    "dispatches": """dispatch_id process_id thread_id device_id queue_id stream_id kernel_id correlation_id start_ns
        end_ns grid_x grid_y grid_z workgroup_x workgroup_y workgroup_z lds_allocated_bytes scratch_bytes
        graph_node_id iteration""",
    "api_calls": "call_id process_id thread_id domain name correlation_id start_ns end_ns",
    "memory_copies": """copy_id process_id device_id direction source_device_id destination_device_id size_bytes
        queue_id stream_id correlation_id start_ns end_ns""",
    "markers": "marker_id process_id thread_id name start_ns end_ns",
    "counters": "dispatch_id counter value pass pass_duration_ns",
    # Telemetry
    "gpu_samples": """time_ns device_id power_w energy_j temperature_hotspot_c temperature_memory_c gfx_clock_mhz
        memory_clock_mhz gfx_activity_ratio memory_activity_ratio memory_used_bytes throttle_reasons
        temperature_gpu_c pcie_generation pcie_lanes ecc_corrected ecc_uncorrected""",
    "system_samples": """time_ns cpu_ratio process_cpu_ns run_delay_ns rss_bytes voluntary_switches
        involuntary_switches major_faults load_1m cpu_pressure_ratio clock_mhz""",
    "scheduler_events": "time_ns cpu thread_id kind duration_ns",
    # Kernel plane
    "kernel_events": "time_ns cpu thread_id kind name duration_ns other_thread_id state value",
    "kernel_threads": "thread_id process_id name start_ns end_ns",
    "thread_states": "thread_id start_ns end_ns state cpu wait by_thread_id by_name",
    "kernel_losses": "cpu buffer start_ns end_ns events",
    "fixed_work_probes": "pass before_iteration cpu start_ns end_ns gaps gap_ns unseen_ns",
    "iteration_delays": """pass iteration cause duration_ns thread_id occurrences grade by_kind by_thread_id by_name""",
    "iteration_grades": """pass iteration grade disturbed_by disturbed_ns is_spike excess_ns spike_cause
        explained_ns""",
    "delay_figures": """pass cause iterations spikes total_ns variance_share_ratio tail_share_ratio p99_without_ns
        ci_low_ns ci_high_ns""",
    # Analysis
    "kernel_stats": "kernel_id dispatch_count total_ns mean_ns min_ns p50_ns p99_ns max_ns share_ratio",
    "operator_kernels": "node_id kernel_id dispatch_count total_ns match score operator outermost_operator",
    "timeline": """device_id iteration window_start_ns window_end_ns window_rule busy_ns active_ratio compute_ns
        exposed_copy_ns exposed_communication_ns overlapped_ns activity_time_sum_ns linked_ratio activity_count""",
    "gaps": """device_id start_ns end_ns cause previous_activity_kind previous_activity_id next_activity_kind
        next_activity_id host_call_id""",
    "critical_path": """activity_kind activity_id slack_ns free_slack_ns is_critical binding_edge
        unexplained_wait_ns criticality""",
    "what_if": "kernel_id speedup_ratio critical_ns saved_ns saved_ratio",
    "rank_clocks": "process_id reference_process_id method offset_ns uncertainty_ns collectives reason",
    "collectives": """collective_id process_id dispatch_id name communicator participants expected_participants
        size_bytes arrival_ns wait_ns arrival_spread_ns is_straggler exposed_ns duration_ns algorithm_bytes_per_s
        bus_bytes_per_s share_ratio remark""",
    "operator_inputs": "call_id operator shapes types strides values",
    "captured_launches": """graph position trace launched_ns kind kernel grid_x grid_y grid_z workgroup_x workgroup_y
        workgroup_z named_by operator_call operator shapes types strides values""",
    "operator_shapes": """operator shapes types detail dtype device_id inputs_from call_count launch_count kernel_ns
        copy_ns flops least_bytes achieved_flops_per_s achieved_bytes_per_s bound share_ratio reason""",
    "critical_path_summary": "scope window_ns path_ns unexplained_ns category category_ns category_ratio",
    "ceilings": "device_id resource dtype value unit source reference",
    "roofline": """kernel_id dispatch_id duration_ns flops flops_by_type flops_is_lower_bound fabric_read_bytes
        fabric_write_bytes dram_read_bytes l2_traffic_bytes vl1d_traffic_bytes lds_traffic_bytes achieved_flops_per_s
        achieved_bytes_per_s fabric_arithmetic_intensity dram_arithmetic_intensity l2_arithmetic_intensity
        vl1d_arithmetic_intensity lds_arithmetic_intensity bound efficiency_ratio quality_flags""",
    "counter_metrics": "kernel_id metric unit value mean min max n quality_flags",
    "resource_bounds": "kernel_id resource dtype work unit lower_bound_ns share_ratio ceiling_source work_source",
    "occupancy": """kernel_id dispatch_id theoretical_ratio limiter achieved_ratio workgroups_per_cu next_ratio
        next_step grid_waves_ratio tail_ratio""",
    "att_instructions": """kernel_id dispatch_id code_object_id address line instruction instruction_class hits
        latency_cycles stall_cycles idle_cycles samples source charged_stall_cycles""",
    "att_stalls": "kernel_id dispatch_id reason stall_cycles samples share_ratio",
    # Completeness
    "completeness": """record_kind process_id device_id launched unrecorded recorded linked counted dropped out_of_range
        out_of_order before_recording before_recording_ns clock_step_ns passes repetitions reason""",
    "completeness_findings": """finding_id finding severity grade subject process_id device_id start_ns end_ns records
        evidence voids at_least at_most mend""",
    # Answer
    "session_parts": "device_id part start_ns end_ns repetitions period_ns phase lacking reason",
    "first_calls": "call_id kind name process_id thread_id start_ns end_ns reason",
    "outlier_dispatches": """dispatch_id kernel_id device_id part start_ns duration_ns warm_median_ns warm_spread_ns
        warm_dispatches possible_causes""",
    "time_shares": "device_id share reason time_ns share_ratio grade",
    "kinds_of_work": """kind time_ns share_ratio dispatch_count alone_ns kernel_id operator shapes dtype rate rate_unit
        roof roof_ratio reached_ratio roof_source""",
    "answers": """class second_class reason device_id window_start_ns window_end_ns window_ns window_rule beside_ns
        repetitions period_ns class_ratio busy_ratio resource kind subject saves_at_most_ns unprofiled_period_ns
        saves_unprofiled_ns advice sharpen sharpen_commands""",
    # Judgement
    "bottlenecks": "scope kernel_id label runner_up score evidence missing recommendation",
    "verdicts": """baseline candidate metric verdict effect_ratio ci_low ci_high threshold_ratio
        minimum_detectable_ratio sessions_candidate sessions_baseline sessions_needed confidence confidence_source
        suspected_cause recommendation role design blocks level p_value q_value floor_ratio excluded_sessions
        slow_sessions alert_grade reasons""",
    "campaigns": """kind design workload backend metric threshold_ratio seed blocks traced_blocks planned_at night
        confirms""",
    "alerts": """alert workload backend host metric event at night campaign sorted_as alert_grade effect_ratio ci_low
        ci_high q_value reasons who""",
    "campaign_limits": "metric limit_ns budget_ratio",
    "service_levels": """workload metric arm limit_ns state quantile_ns ci_low_ns ci_high_ns budget_ratio
        over_limit_ratio over_limit_low_ratio over_limit_high_ratio burn_ratio sessions iterations""",
    "aa_ledger": "workload host metric design blocks sessions_per_block effect_ratio level p_value",
    "attributions": "baseline candidate kind subject delta_ns ci_low_ns ci_high_ns evidence_grade",
    "change_points": """series campaign first_location last_location effect_ratio ci_low ci_high workload backend host
        metric arm kind of owed_to started_at nights_before nights_after delay_nights""",
    "nights": """workload backend host metric arm night campaign started_at sessions level_ns ci_low_ns ci_high_ns
        error_ratio paired_with paired_artefact_sha256 paired_blocks paired_ratio paired_ci_low paired_ci_high
        paired_error_ratio is_outlier paired_is_outlier segment paired_segment fingerprint is_new_fingerprint""",
    "forecasts": """workload backend host metric arm nights level_ns slope_ratio slope_ci_low slope_ci_high p_value
        limit_ns state nights_to_limit nights_to_limit_low nights_to_limit_high coverage_ratio pinball_ratio reason""",
    "kernels_to_fix": """rank kernel_id total_ns share_ratio criticality critical_ns bound roof_ratio headroom_ratio
        saves_at_most_ns speedup_ratio saved_ns label library proposers missing""",
    "optimization_attempts": """attempt kernel transformation proposer guard decision reason speedup_ratio ci_low
        ci_high executed_on compiler source_sha256 binary_sha256 vgprs_before vgprs_after sgprs_before sgprs_after
        lds_bytes_before lds_bytes_after scratch_bytes_before scratch_bytes_after resources_of measured_in
        speedup_applies_to flags baseline_sha256 bit_exact pairs layouts alpha""",
    "optimizations": """source_name kernel session target executed_on speedup_applies_to threshold_ratio budget_ns seed
        source_sha256 journal ended_by patch is_applied""",
}

#: The words an enumerated column may hold; its meaning must list each of them.
WORDS: Final[dict[str, str]] = {
    "sessions.source_kind": "live capture",
    "sessions.arm": "candidate baseline canary",
    "evidence.status": "present absent invalid partial",
    "iterations.pass": "latency trace",
    "iterations.phase": "warmup measure",
    "kernels.role": "main auxiliary",
    "kernels.family_source": "op name none",
    "memory_copies.direction": "fill",
    "memory_copies.host_memory": "pageable pinned",
    "operator_kernels.match": "name order marker correlation unattributed",
    "gaps.cause": "sync host_wait launch_latency dependency kernel_kernel unknown",
    "completeness_findings.severity": "fault bound note",
    "completeness_findings.grade": "observed inferred",
    "rank_clocks.method": "same_process same_host collectives none",
    "critical_path.activity_kind": "dispatch memory_copy api_call",
    "critical_path.binding_edge": "launch stream queue event sync program none",
    "ceilings.source": "spec measured fitted",
    "resource_bounds.work_source": "counters model",
    "session_parts.part": "set_up steady interruption tear_down",
    "session_parts.lacking": "cold_start incomplete",
    "time_shares.share": "device communication copy sync launch host unknown",
    "time_shares.reason": "contention throttling imbalance allocation compilation page_faults",
    "time_shares.grade": "observed inferred",
    "kinds_of_work.rate_unit": "flop/s byte/s",
    "kinds_of_work.roof_source": "measured spec",
    "answers.class": "incomplete cold_start",
    "bottlenecks.scope": "session kernel",
    "bottlenecks.label": """incomplete cold_start device communication copy sync launch host unknown contention
        imbalance throttling allocation compilation page_faults""",
    "verdicts.verdict": "regressed improved equivalent inconclusive withheld",
    "verdicts.role": "primary supporting",
    "service_levels.state": "ok at_risk breached not_enough_data",
    "change_points.kind": "level drift",
    "change_points.of": "raw paired",
    "change_points.owed_to": "code host",
    "optimizations.ended_by": "searched time attempts baseline noise",
    "optimization_attempts.decision": "accepted rejected undecided",
    "optimization_attempts.measured_in": "confirmation search",
    "attributions.evidence_grade": "observed correlated isolated",
}

CAMPAIGN_TABLES: Final = {
    *("scaling", "aa_ledger", "verdicts", "attributions", "selections", "change_points"),
    *("campaigns", "campaign_arms", "campaign_sessions", "baselines", "alerts", "nights"),
    *("forecasts", "campaign_limits", "service_levels"),
    *("campaigns", "campaign_arms", "campaign_sessions", "baselines"),
    *("bisections", "bisection_builds", "bisection_steps", "optimizations", "optimization_attempts"),
}

#: What a name's suffix promises of type and unit.
SUFFIXES: Final[dict[str, tuple[str, str]]] = {
    "_ns": ("int64", "ns"),
    "_bytes": ("int64", "bytes"),
    "_ratio": ("float64", "ratio"),
    "_w": ("float64", "W"),
    "_j": ("float64", "J"),
    "_c": ("float64", "degC"),
    "_mhz": ("float64", "MHz"),
    "_cycles": ("int64", "cycles"),
    "_arithmetic_intensity": ("float64", "flop/byte"),
    "_sha256": ("string", "text"),
}

#: Columns that are the same thing in every table, whose type must not differ between them.
SHARED_TYPES: Final[dict[str, str]] = {
    "thread_id": "int64",
    "iteration": "int32",
    "pass": "string",
    "correlation_id": "uint64",
    "address": "uint64",
    "code_object_id": "uint64",
    "graph_node_id": "uint64",
    **dict.fromkeys(
        ["process_id", "device_id", "queue_id", "stream_id", "kernel_id", "dispatch_id", "node_id", "activity_id"],
        "int32",
    ),
}

EVERY_COLUMN: Final[list[tuple[Table, Column]]] = [(t, c) for t in all_tables().values() for c in t.all_columns]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_table_has_its_public_columns(name: str) -> None:
    declared = {c.name for c in contract(name).columns}
    missing = set(PUBLIC[name].split()) - declared
    assert not missing, f"{name} lacks {sorted(missing)}"


def test_tables_of_scope_campaign_are_those_that_judge_sets_of_sessions() -> None:
    assert {t.name for t in all_tables().values() if t.scope == "campaign"} == CAMPAIGN_TABLES
    assert contract("verdicts").all_columns[0].name == "campaign_id"
    assert contract("dispatches").all_columns[0].name == "session_id"


def test_sections_come_in_the_order_of_the_dictionary_without_a_break() -> None:
    sections = [t.section for t in all_tables().values()]
    assert list(dict.fromkeys(sections)) == [
        "What was run",
        "Model",
        "Inference",
        "Program",
        "Trace",
        "Telemetry",
        "Kernel plane",
        "Completeness",
        "Analysis",
        "Answer",
        "Judgement",
    ]
    assert sections == sorted(sections, key=list(dict.fromkeys(sections)).index)


@pytest.mark.parametrize("place", WORDS)
def test_enumerated_column_lists_its_words(place: str) -> None:
    table, _, name = place.partition(".")
    meaning = next(c.meaning for c in contract(table).columns if c.name == name)
    assert [word for word in WORDS[place].split() if f"`{word}`" not in meaning] == []


def test_every_table_says_what_a_row_is_and_who_fills_it() -> None:
    for table in all_tables().values():
        assert table.meaning.startswith("One row "), table.name
        assert "illed by " in table.meaning, table.name
        assert table.meaning.endswith("."), table.name
        assert table.version >= 1, table.name


def test_every_column_has_a_sentence_a_unit_and_a_known_type() -> None:
    for table, c in EVERY_COLUMN:
        place = f"{table.name}.{c.name}"
        assert len(c.meaning.split()) >= 4, place
        assert c.meaning.endswith("."), place
        assert "  " not in c.meaning, place
        assert c.meaning.count("`") % 2 == 0, place
        assert c.unit and not any(character.isspace() for character in c.unit), place
        assert c.dtype in DUCKDB_TYPES, place
        assert 1 <= c.since <= table.version, place


def test_column_names_are_unique_within_a_table() -> None:
    for table in all_tables().values():
        names = [c.name for c in table.all_columns]
        assert len(names) == len(set(names)), table.name


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_suffix_fixes_type_and_unit(suffix: str) -> None:
    found = {f"{t.name}.{c.name}": (c.dtype, c.unit) for t, c in EVERY_COLUMN if c.name.endswith(suffix)}
    assert found, f"no column ends in {suffix}"
    assert {place: pair for place, pair in found.items() if pair != SUFFIXES[suffix]} == {}


@pytest.mark.parametrize(("unit", "suffix"), [("ns", "_ns"), ("W", "_w"), ("J", "_j"), ("degC", "_c"), ("MHz", "_mhz")])
def test_unit_shows_in_the_name(unit: str, suffix: str) -> None:
    assert [f"{t.name}.{c.name}" for t, c in EVERY_COLUMN if c.unit == unit and not c.name.endswith(suffix)] == []


def test_shared_columns_have_one_type_everywhere() -> None:
    wrong = [f"{t.name}.{c.name}" for t, c in EVERY_COLUMN if c.dtype != SHARED_TYPES.get(c.name, c.dtype)]
    assert wrong == []


def test_no_column_is_a_percentage() -> None:
    found = [f"{t.name}.{c.name}" for t, c in EVERY_COLUMN if any(word in c.name for word in ("percent", "pct"))]
    assert found == []
    assert [f"{t.name}.{c.name}" for t, c in EVERY_COLUMN if c.unit in {"%", "percent"}] == []


def test_sort_keys_name_columns_that_can_be_ordered() -> None:
    for table in all_tables().values():
        types = {c.name: c.dtype for c in table.all_columns}
        assert table.sort_by, table.name
        assert len(set(table.sort_by)) == len(table.sort_by), table.name
        for name in table.sort_by:
            assert name in types, f"{table.name} is sorted by {name}, which it does not have"
            assert not types[name].startswith("list"), f"{table.name}.{name}"


@pytest.mark.parametrize("name", list(all_tables()))
def test_polars_and_duckdb_agree_on_every_type(name: str, tmp_path: Path) -> None:
    table = contract(name)
    file = tmp_path / "empty.parquet"
    pl.DataFrame(schema=polars_schema(table)).write_parquet(file)
    assert pl.read_parquet_schema(file) == polars_schema(table)
    with duckdb.connect() as connection:
        described = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(file)]).fetchall()
        # DuckDB spells its types its own way, with quotes round some field names, so both sides are described by it.
        casts = ", ".join(f'CAST(NULL AS {DUCKDB_TYPES[c.dtype]}) AS "{c.name}"' for c in table.all_columns)
        declared = connection.execute(f"DESCRIBE SELECT {casts}").fetchall()
    assert [row[:2] for row in described] == [row[:2] for row in declared]


def test_every_type_name_is_known_to_polars() -> None:
    for name in DUCKDB_TYPES:
        polars_dtype(name)
    assert {c.dtype for _, c in EVERY_COLUMN} == set(DUCKDB_TYPES)


def test_types_of_some_columns_come_in_the_order_asked_for() -> None:
    assert polars_types("kernels", "name", "kernel_id") == {"name": pl.String(), "kernel_id": pl.Int32()}
    assert "session_id" not in polars_types("kernels")
    with pytest.raises(KeyError):
        polars_types("kernels", "no_such_column")


def test_unknown_table_is_refused() -> None:
    with pytest.raises(KeyError):
        contract("no_such_table")
