//! Tests of all policies: the contract that each keeps, and slow models that some are compared
//! with.

mod contract;
mod reference;
