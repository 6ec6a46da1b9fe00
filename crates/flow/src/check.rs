//! The checker: a tree in, a plan or diagnostics out.
