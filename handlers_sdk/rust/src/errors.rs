//! placeholder
pub(crate) const OUTCOME_UNKNOWN: &str = "outcome_unknown";
