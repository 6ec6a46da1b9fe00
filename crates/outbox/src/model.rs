//! The store of the outbox as a model, for simulation.
