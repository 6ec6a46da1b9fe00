//! The promises of `tidegate-core`, held to the real ports of this machine.

mod ports;
