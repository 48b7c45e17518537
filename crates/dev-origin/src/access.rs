//! Authentication, and injected failures.
//!
//! Failures are injected after the signature is verified and the operation is known, so that a
//! failing request is counted exactly like one that succeeds.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use s3s::{
    S3Result,
    access::{S3Access, S3AccessContext},
    auth::{S3Auth, SecretKey},
    path::S3Path,
    s3_error,
};

use crate::config::{Config, Fault, LimitedKey};

/// Authentication with pairs of keys. Unlike `SimpleAuth`, its error for a wrong key is S3's.
pub struct KeyAuth(pub HashMap<String, SecretKey>);

#[async_trait::async_trait]
impl S3Auth for KeyAuth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0.get(access_key).cloned().ok_or_else(|| {
            s3_error!(
                InvalidAccessKeyId,
                "The access key is unknown to this origin; the default is `{}`",
                crate::ACCESS_KEY
            )
        })
    }
}

/// State of one request, attached to it as an extension.
#[derive(Debug, Default)]
pub struct RequestContext {
    pub operation: OnceLock<String>,
    pub fault: OnceLock<Fault>,
}

/// Chooses from a list and a seed which requests fail, and how.
#[derive(Debug)]
pub struct Faults {
    rate: f64,
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    /// Faults of the next `GetObject` requests.
    listed: VecDeque<Fault>,
    random: fastrand::Rng,
    cut_next: bool,
}

impl Faults {
    /// The faults of a configuration.
    pub fn of(config: &Config) -> Self {
        Self::new(config.get_faults.clone(), config.fail_rate, config.seed)
    }

    pub fn new(listed: Vec<Fault>, rate: f64, seed: u64) -> Self {
        let (listed, random) = (listed.into(), fastrand::Rng::with_seed(seed));
        let state = FaultState { listed, random, cut_next: false };
        Self { rate, state: Mutex::new(state) }
    }

    /// The next `GetObject` requests fail in these ways, in order.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().listed.extend(faults);
    }

    /// Failing GETs alternate between a refusal and a cut body. Other operations have no body.
    fn draw(&self, operation: &str) -> Option<Fault> {
        let mut state = self.state.lock();
        if operation == "GetObject"
            && let Some(fault) = state.listed.pop_front()
        {
            return Some(fault);
        }
        if self.rate == 0.0 {
            return None;
        }
        if state.random.f64() >= self.rate {
            return None;
        }
        let cut = operation == "GetObject" && state.cut_next;
        state.cut_next ^= operation == "GetObject";
        Some(if cut { Fault::CutBody } else { Fault::SlowDown })
    }
}

/// Admits signed requests, except for those that are chosen to fail.
pub struct AccessCheck {
    pub faults: Arc<Faults>,
    pub limited: Vec<LimitedKey>,
}

impl AccessCheck {
    /// Whether a key may touch a name.
    fn allows(&self, access_key: &str, path: &S3Path) -> bool {
        let Some(key) = self.limited.iter().find(|key| key.access_key == access_key) else {
            return true;
        };
        let name = match path {
            S3Path::Root => String::new(),
            S3Path::Bucket { bucket } => format!("{bucket}/"),
            S3Path::Object { bucket, key } => format!("{bucket}/{key}"),
        };
        key.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

#[async_trait::async_trait]
impl S3Access for AccessCheck {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = context.credentials() else {
            return Err(s3_error!(AccessDenied, "Requests to this origin must be signed"));
        };
        let is_allowed = self.allows(&credentials.access_key, context.s3_path());
        let operation = context.s3_op().name().to_owned();
        if !is_allowed {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
        let fault = self.faults.draw(&operation);
        if let Some(request_context) = context.extensions_mut().get::<Arc<RequestContext>>() {
            request_context.operation.get_or_init(|| operation);
            if let Some(fault) = fault.clone() {
                request_context.fault.get_or_init(|| fault);
            }
        }
        match fault {
            Some(Fault::SlowDown) => Err(s3_error!(SlowDown, "Please reduce your request rate.")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_follow_the_seed_and_failing_gets_alternate() {
        let draw = |seed| {
            let faults = Faults::new(Vec::new(), 0.3, seed);
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
    fn listed_faults_come_first_and_for_gets_only() {
        let listed = vec![Fault::HangInBody, Fault::CorruptBody];
        let faults = Faults::new(listed.clone(), 0.0, 0);
        assert_eq!(faults.draw("HeadObject"), None);
        let drawn: Vec<_> = (0..3).map(|_| faults.draw("GetObject")).collect();
        assert_eq!(drawn, [Some(listed[0].clone()), Some(listed[1].clone()), None]);
    }

    #[test]
    fn only_gets_are_cut() {
        let faults = Faults::new(Vec::new(), 1.0, 0);
        for operation in ["PutObject", "ListObjectsV2", "HeadObject", "PutObject"] {
            assert_eq!(faults.draw(operation), Some(Fault::SlowDown));
        }
    }
}
