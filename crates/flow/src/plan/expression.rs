//! Expressions inside a plan.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::expression::CheckedExpression;

/// An expression of a plan: its text, and the checked form where the checker made the plan.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanExpression {
    /// The text with our own spaces.
    pub text: String,
    /// Ready to be evaluated; none in a plan that was read from JSON.
    #[serde(skip)]
    pub checked: Option<Arc<CheckedExpression>>,
}

/// Two expressions of one text are equal.
impl PartialEq for PlanExpression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
