//! Tests of the gateway's behaviour.

mod front;
mod objects;
