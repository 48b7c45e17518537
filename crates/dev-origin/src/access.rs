//! Who may come in, and who is turned away on purpose.
//!
//! Failures are injected here, once a signature was found good and the operation is known, so that a
//! failing request is classified exactly like one that succeeds.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use s3s::{
    S3Result,
    access::{S3Access, S3AccessContext},
    auth::{S3Auth, SecretKey},
    s3_error,
};

/// Knows one pair of keys. Unlike `SimpleAuth` it names a wrong one as S3 does.
pub struct OneKey {
    pub access_key: String,
    pub secret_key: SecretKey,
}

#[async_trait::async_trait]
impl S3Auth for OneKey {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key {
            Ok(self.secret_key.clone())
        } else {
            Err(s3_error!(
                InvalidAccessKeyId,
                "This origin does not know the access key; unless it was told otherwise, it is `{}`",
                crate::ACCESS_KEY
            ))
        }
    }
}

/// What became known about one request on its way; travels with it as an extension.
#[derive(Debug, Default)]
pub struct Ticket {
    pub operation: OnceLock<String>,
    pub fault: OnceLock<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Answered `503 SlowDown` instead.
    SlowDown,
    /// The body ends half-way, and the connection with it.
    CutBody,
}

/// Decides request by request, from a seed, which of them fail and how.
#[derive(Debug)]
pub struct Faults {
    rate: f64,
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    random: fastrand::Rng,
    cut_next: bool,
}

impl Faults {
    pub fn new(rate: f64, seed: u64) -> Self {
        let state = FaultState { random: fastrand::Rng::with_seed(seed), cut_next: false };
        Self { rate, state: Mutex::new(state) }
    }

    /// Failing GETs alternate between the two kinds; only they have a body worth cutting.
    fn draw(&self, operation: &str) -> Option<Fault> {
        if self.rate == 0.0 {
            return None;
        }
        let mut state = self.state.lock();
        if state.random.f64() >= self.rate {
            return None;
        }
        let cut = operation == "GetObject" && state.cut_next;
        state.cut_next ^= operation == "GetObject";
        Some(if cut { Fault::CutBody } else { Fault::SlowDown })
    }
}

/// Lets signed requests in, except for those whose turn it is to fail.
pub struct Gate(pub Faults);

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "Requests to this origin must be signed"));
        }
        let operation = context.s3_op().name().to_owned();
        let fault = self.0.draw(&operation);
        if let Some(ticket) = context.extensions_mut().get::<Arc<Ticket>>() {
            ticket.operation.get_or_init(|| operation);
            if let Some(fault) = fault {
                ticket.fault.get_or_init(|| fault);
            }
        }
        match fault {
            Some(Fault::SlowDown) => Err(s3_error!(SlowDown, "Please reduce your request rate.")),
            Some(Fault::CutBody) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_failing_gets_alternate() {
        let draw = |seed| {
            let faults = Faults::new(0.3, seed);
            (0..200).map(|_| faults.draw("GetObject")).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let failed: Vec<_> = draw(7).into_iter().flatten().collect();
        assert!((40..80).contains(&failed.len()), "{} of 200", failed.len());
        for pair in failed.chunks_exact(2) {
            assert_eq!(pair, [Fault::SlowDown, Fault::CutBody]);
        }
    }

    #[test]
    fn only_gets_are_cut() {
        let faults = Faults::new(1.0, 0);
        for operation in ["PutObject", "ListObjectsV2", "HeadObject", "PutObject"] {
            assert_eq!(faults.draw(operation), Some(Fault::SlowDown));
        }
    }
}
