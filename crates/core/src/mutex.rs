//! A lock that outlives a panic.

use std::sync::{MutexGuard, PoisonError};

/// A mutex without poisoning: its value stays readable after a panic. It is for values that every
/// caller leaves whole between two statements.
///
/// ```
/// use tidegate_core::Mutex;
/// let count = Mutex::new(1);
/// *count.lock() += 1;
/// assert_eq!(*count.lock(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits until nobody else holds it, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, where nobody else can hold it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
