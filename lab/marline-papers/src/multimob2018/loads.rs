//! Workloads of the study.

use marline_lab::workload::{Gap, Workload};

/// Traffic of the authors' voice assistant. It sends no request while nine are unanswered.
pub(crate) const ASSISTANT: Workload = Workload::Dialogue {
    request_bytes: 2_500,
    answer_bytes: 750,
    pieces: (85, 500),
    unanswered_bytes: 9 * 2_500,
    gap: Gap { least_ms: 333.0, most_ms: 333.0 },
    count: 240,
};

/// The authors' second load.
pub(super) const ECHO: Workload = Workload::Ask {
    request_bytes: 750,
    answer_bytes: 750,
    gap: Gap { least_ms: 400.0, most_ms: 400.0 },
    count: 200,
};
