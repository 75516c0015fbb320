"""What the product tells people."""

from __future__ import annotations

from benchflow_client.report.again import judged_again_report
from benchflow_client.report.agents import agent_record, agent_report, agents_report
from benchflow_client.report.blocks import (
    Block,
    Column,
    Line,
    Report,
    Row,
    Table,
    Tone,
    report_data,
)
from benchflow_client.report.fleet import (
    Check,
    JobRow,
    LimitRow,
    WorkerRow,
    doctor_report,
    job_row,
    jobs_report,
    limits_report,
    sandboxes_report,
    trials_report,
    workers_report,
)
from benchflow_client.report.lift import lift_record, lift_report
from benchflow_client.report.numbers import (
    detached_report,
    done_report,
    failure_report,
    plan_report,
    summary_report,
)

__all__ = [
    "Block",
    "Check",
    "Column",
    "JobRow",
    "LimitRow",
    "Line",
    "Report",
    "Row",
    "Table",
    "Tone",
    "WorkerRow",
    "agent_record",
    "agent_report",
    "agents_report",
    "detached_report",
    "doctor_report",
    "done_report",
    "failure_report",
    "job_row",
    "jobs_report",
    "judged_again_report",
    "lift_record",
    "lift_report",
    "limits_report",
    "plan_report",
    "report_data",
    "sandboxes_report",
    "summary_report",
    "trials_report",
    "workers_report",
]
