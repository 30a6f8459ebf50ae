"""The statements behind the page of each kernel that matters: the heaviest ones of a session, all read together.

Every part is a list of rows with kernel_id; `shown_kernels` says which kernels there are, and holds of each what its
tables say once. Statements about one kernel asked for by name are `kernel`.
"""

from collections.abc import Mapping
from typing import Final

#: So many kernels have a page of their own: what is to be fixed first, the heaviest, then traced ones without times.
PAGED_KERNELS: Final = 16
#: Stretches of a kernel's dispatches, in the order in which they began, that its plot tells apart.
_STRETCHES: Final = 96
_LAUNCHES: Final = 4
_OPERATORS: Final = 6
_INSTRUCTIONS: Final = 8
_LINES: Final = 6

_OF_SESSION: Final = "(SELECT * FROM {table} WHERE session_id = '{{session}}')"
_WHOLE: Final = "(SELECT * FROM {table} WHERE session_id = '{{session}}' AND dispatch_id IS NULL)"


def _of(table: str, whole: bool = False) -> str:
    return (_WHOLE if whole else _OF_SESSION).format(table=table)


_TRACED: Final = (
    "(SELECT kernel_id, coalesce(sum(stall_cycles), sum(samples)) AS lost FROM att_stalls "
    "WHERE session_id = '{session}' GROUP BY kernel_id)"
)
_TO_FIX: Final = (
    f"(SELECT DISTINCT w.kernel_id, true AS is_first FROM {_of('answers')} AS a JOIN {_of('kinds_of_work')} AS w "
    "USING (kind) WHERE w.kernel_id IS NOT NULL)"
)
#: The kernels that have a page; `is_first` is that of the kind of work that the answer would fix first.
_PAGED: Final = (
    "(SELECT k.kernel_id, coalesce(f.is_first, false) AS is_first "
    f"FROM {_of('kernels')} AS k LEFT JOIN {_of('kernel_stats')} AS t USING (kernel_id) "
    f"LEFT JOIN {_TRACED} AS a USING (kernel_id) LEFT JOIN {_of('roofline', True)} AS r USING (kernel_id) "
    f"LEFT JOIN {_TO_FIX} AS f USING (kernel_id) "
    "WHERE t.kernel_id IS NOT NULL OR a.kernel_id IS NOT NULL OR r.kernel_id IS NOT NULL "
    "ORDER BY is_first DESC, t.total_ns DESC NULLS LAST, a.lost DESC NULLS LAST, k.kernel_id "
    f"LIMIT {PAGED_KERNELS})"
)
#: Of a kernel's dispatch or thread trace the one that lost most: traces are never added up.
_TRACE: Final = (
    "(SELECT kernel_id, dispatch_id, capture FROM att_instructions WHERE session_id = '{session}' "
    f"AND kernel_id IN (SELECT kernel_id FROM {_PAGED}) GROUP BY kernel_id, dispatch_id, "
    "capture QUALIFY row_number() OVER (PARTITION BY kernel_id ORDER BY sum(stall_cycles) DESC NULLS LAST, "
    "sum(samples) DESC NULLS LAST, dispatch_id, capture) = 1)"
)
_SAME_TRACE: Final = (
    "ON i.kernel_id = m.kernel_id AND i.dispatch_id IS NOT DISTINCT FROM m.dispatch_id "
    "AND i.capture IS NOT DISTINCT FROM m.capture"
)
#: The dispatches that `kernel_stats` sums up, warm-up left out; the rule is `analysis.kernels.statistics`.
_COUNTED: Final = (
    "(SELECT * FROM dispatches WHERE session_id = '{session}' AND ((SELECT count(*) FROM iterations "
    "WHERE session_id = '{session}' AND \"pass\" = 'trace') < 2 OR iteration IN (SELECT iteration FROM iterations "
    "WHERE session_id = '{session}' AND \"pass\" = 'trace' AND phase = 'measure') OR process_id NOT IN ("
    "SELECT process_id FROM dispatches WHERE session_id = '{session}' AND iteration IS NOT NULL) AND (SELECT "
    "count(DISTINCT process_id) FROM dispatches WHERE session_id = '{session}') > 1))"
)
_SHAPE: Final = (
    "grid_x, grid_y, grid_z, workgroup_x, workgroup_y, workgroup_z, grid_work_items, workgroup_work_items, "
    "lds_allocated_bytes, scratch_bytes"
)
_LOST: Final = "greatest(coalesce(stall_cycles, samples, 0), coalesce(charged_stall_cycles, 0))"
_PLACE: Final = f"{_LOST} DESC, i.code_object_id, i.address, i.line"

KERNEL_PAGES: Final[Mapping[str, str]] = {
    "shown_kernels": (
        "SELECT k.* EXCLUDE (session_id, fingerprint, short_name), k.short_name AS operator, p.is_first, "
        "t.dispatch_count, t.total_ns, t.mean_ns, t.min_ns, t.p50_ns, t.p99_ns, t.max_ns, t.share_ratio, "
        "r.* EXCLUDE (session_id, kernel_id, dispatch_id, duration_ns), r.duration_ns AS counted_ns, c.counted, "
        "o.* EXCLUDE (session_id, kernel_id, dispatch_id), b.label, b.runner_up, b.score, b.evidence, "
        "b.missing AS missing_signals, b.recommendation "
        f"FROM {_PAGED} AS p JOIN {_of('kernels')} AS k USING (kernel_id) "
        f"LEFT JOIN {_of('kernel_stats')} AS t USING (kernel_id) LEFT JOIN {_of('roofline', True)} AS r "
        "USING (kernel_id) LEFT JOIN (SELECT kernel_id, count(*) AS counted FROM roofline "
        "WHERE session_id = '{session}' AND dispatch_id IS NOT NULL GROUP BY kernel_id) AS c USING (kernel_id) "
        f"LEFT JOIN {_of('occupancy', True)} AS o USING (kernel_id) LEFT JOIN (SELECT * FROM bottlenecks "
        "WHERE session_id = '{session}' AND scope = 'kernel') AS b USING (kernel_id) "
        "ORDER BY t.total_ns DESC NULLS LAST, k.kernel_id"
    ),
    "kernel_launches": (
        f"SELECT kernel_id, {_SHAPE}, count(*) AS dispatch_count, "
        "sum(self_ns) AS total_ns, count(*) OVER (PARTITION BY kernel_id) AS launch_shapes "
        f"FROM {_of('dispatches')} WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "AND coalesce(workgroup_x, workgroup_work_items, grid_x, grid_work_items, lds_allocated_bytes, scratch_bytes) "
        f"IS NOT NULL GROUP BY kernel_id, {_SHAPE} QUALIFY row_number() OVER (PARTITION BY kernel_id "
        f"ORDER BY total_ns DESC NULLS LAST, {_SHAPE}) <= {_LAUNCHES} "
        f"ORDER BY kernel_id, total_ns DESC NULLS LAST, {_SHAPE}"
    ),
    "kernel_durations": (
        "SELECT kernel_id, sum(dispatches)::BIGINT AS dispatch_count, any_value(quartile_1_ns) AS quartile_1_ns, "
        "any_value(quartile_3_ns) AS quartile_3_ns, list(struct_pack(dispatches := dispatches, least_ns := least_ns, "
        "most_ns := most_ns) ORDER BY stretch) AS stretches FROM (SELECT kernel_id, stretch, count(*) AS dispatches, "
        "min(self_ns) AS least_ns, max(self_ns) AS most_ns, any_value(quartile_1_ns) AS quartile_1_ns, "
        "any_value(quartile_3_ns) AS quartile_3_ns FROM (SELECT kernel_id, self_ns, "
        f"ntile({_STRETCHES}) OVER (PARTITION BY kernel_id ORDER BY start_ns, dispatch_id) AS stretch, "
        "quantile_disc(self_ns, 0.25) OVER (PARTITION BY kernel_id) AS quartile_1_ns, "
        "quantile_disc(self_ns, 0.75) OVER (PARTITION BY kernel_id) AS quartile_3_ns "
        f"FROM {_COUNTED} WHERE self_ns IS NOT NULL "
        f"AND kernel_id IN (SELECT kernel_id FROM {_PAGED})) GROUP BY kernel_id, stretch) "
        "GROUP BY kernel_id ORDER BY kernel_id"
    ),
    "kernel_outliers": (
        "SELECT kernel_id, count(*) AS dispatch_count, max(duration_ns) AS longest_ns, "
        "any_value(warm_median_ns) AS warm_median_ns, "
        "list_sort(list_distinct(flatten(list(possible_causes)))) AS possible_causes "
        f"FROM {_of('outlier_dispatches')} WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "GROUP BY kernel_id ORDER BY kernel_id"
    ),
    "kernel_bounds": (
        f"SELECT * EXCLUDE (session_id) FROM {_of('resource_bounds')} "
        f"WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "ORDER BY kernel_id, lower_bound_ns DESC, resource, dtype, ceiling_source"
    ),
    "kernel_metrics": (
        "SELECT kernel_id, metric, unit, value, quality_flags FROM counter_metrics WHERE session_id = '{session}' "
        "AND value IS NOT NULL AND (metric LIKE '%busy_ratio%' OR metric LIKE '%hit_ratio%' "
        "OR metric IN ('issuing_ratio', 'issue_wait_ratio', 'dependency_wait_ratio')) "
        f"AND kernel_id IN (SELECT kernel_id FROM {_PAGED}) ORDER BY kernel_id, metric"
    ),
    "kernel_operators": (
        "SELECT o.kernel_id, coalesce(n.name, o.operator) AS name, "
        "coalesce(n.op_type, o.outermost_operator) AS op_type, "
        'o.dispatch_count, o.total_ns, o."match", s.shapes, s.detail, s.shape_count, '
        "count(*) OVER (PARTITION BY o.kernel_id) AS operator_count "
        f"FROM (SELECT * FROM {_of('operator_kernels')} WHERE kernel_id IN (SELECT kernel_id FROM {_PAGED}) "
        "AND \"match\" <> 'unattributed') AS o "
        f"LEFT JOIN {_of('model_nodes')} AS n USING (node_id) "
        "LEFT JOIN (SELECT operator, first(shapes ORDER BY kernel_ns DESC, shapes) AS shapes, "
        "first(detail ORDER BY kernel_ns DESC, shapes) AS detail, count(DISTINCT shapes) AS shape_count "
        "FROM operator_shapes WHERE session_id = '{session}' GROUP BY operator) AS s ON s.operator = o.operator "
        "QUALIFY row_number() OVER (PARTITION BY o.kernel_id ORDER BY o.total_ns DESC, name, op_type, o.node_id) "
        f"<= {_OPERATORS} ORDER BY o.kernel_id, o.total_ns DESC, name, op_type, o.node_id"
    ),
    "kernel_instructions": (
        "SELECT i.kernel_id, i.dispatch_id, i.capture, i.line, i.address, i.instruction, i.instruction_class, i.hits, "
        "i.stall_cycles, i.charged_stall_cycles, i.samples, i.source, "
        "sum(coalesce(i.stall_cycles, i.samples)) OVER (PARTITION BY i.kernel_id) AS lost "
        f"FROM {_of('att_instructions')} AS i JOIN {_TRACE} AS m {_SAME_TRACE} "
        f"QUALIFY row_number() OVER (PARTITION BY i.kernel_id ORDER BY {_PLACE}) <= {_INSTRUCTIONS} "
        f"ORDER BY i.kernel_id, {_PLACE}"
    ),
    "kernel_lines": (
        "SELECT i.kernel_id, i.source, sum(i.stall_cycles)::BIGINT AS stall_cycles, sum(i.samples)::BIGINT AS samples "
        f"FROM {_of('att_instructions')} AS i JOIN {_TRACE} AS m {_SAME_TRACE} WHERE i.source IS NOT NULL "
        "GROUP BY i.kernel_id, i.source QUALIFY row_number() OVER (PARTITION BY i.kernel_id "
        "ORDER BY coalesce(sum(i.stall_cycles), sum(i.samples)) DESC NULLS LAST, i.source) "
        f"<= {_LINES} ORDER BY i.kernel_id, coalesce(sum(i.stall_cycles), sum(i.samples)) DESC NULLS LAST, i.source"
    ),
}
