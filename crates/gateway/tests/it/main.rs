//! Tests of the gateway's behaviour.

mod objects;
