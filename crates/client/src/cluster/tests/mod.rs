//! Tests of a job's nodes against listeners that misbehave.

mod hung_nodes;
