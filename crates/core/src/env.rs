//! The doors to the outside: time, randomness, disk and tasks.
//!
//! Everything that decides or stores goes through these four ports, so that a simulated run owns
//! all of them. [`system`] holds the real implementations and is the only place in the product
//! that knows the operating system.

mod catch_panic;
mod clock;
mod disk;
mod entropy;
mod spawn;
pub mod system;

use std::fmt;
use std::sync::Arc;

pub use catch_panic::CatchPanic;
pub use clock::{Clock, Sleep};
pub use disk::{DirEntry, Disk, DiskFile, DiskLock, OpenMode};
pub use entropy::{Entropy, Stream};
pub use spawn::{BoxFuture, Spawn, Task, TaskOutcome};

/// The ports a component is given, as one value.
///
/// ```
/// use tidegate_core::env::Env;
/// let env = Env::system();
/// let before = env.clock.elapsed();
/// assert!(env.clock.elapsed() >= before);
/// ```
pub struct Env {
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where randomness comes from.
    pub entropy: Box<dyn Entropy>,
    /// Where durable bytes go.
    pub disk: Arc<dyn Disk>,
    /// Who runs tasks.
    pub spawn: Arc<dyn Spawn>,
}

impl Env {
    /// The ports of this machine.
    #[must_use]
    pub fn system() -> Self {
        Self {
            clock: Arc::new(system::SystemClock::new()),
            entropy: Box::new(system::system_entropy()),
            disk: Arc::new(system::SystemDisk),
            spawn: Arc::new(system::TokioSpawn),
        }
    }

    /// The same ports for a component of its own, with a stream of randomness that depends on
    /// `name` alone: what one component draws never shifts what another one gets.
    #[must_use]
    pub fn fork(&self, name: &str) -> Self {
        Self {
            clock: Arc::clone(&self.clock),
            entropy: self.entropy.fork(name),
            disk: Arc::clone(&self.disk),
            spawn: Arc::clone(&self.spawn),
        }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env")
            .field("clock", &self.clock)
            .field("disk", &self.disk)
            .finish()
    }
}
