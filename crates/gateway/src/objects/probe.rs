//! Probes: one request as the caller that confirms the version of an object and the caller's right.
//!
//! The probe is a HEAD. For an object with a key of its own (SSE-KMS) it is a GET of one byte,
//! because HEAD needs no right to decrypt.
//!
//! Requests of one principal for one object share probes. A request takes the result of a probe
//! only if that was sent after the request arrived, so at most one waits for another.

use std::{collections::HashMap, sync::Arc, time::Duration};

use forebay_core::gateway::{
    rights::{Holding, PrincipalId, Right},
    versions::ObjectId,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;

use super::{Shared, counters::add, object_head::ObjectHead, request_terms::CHECKSUM_MODE};
use crate::{
    object_request::ObjectRequest,
    origin_client::{OriginRequest, OriginTarget},
};

/// What a request needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProbeNeed {
    /// The object.
    pub object: ObjectId,
    /// The principal.
    pub principal: PrincipalId,
    /// Whether it wants the bytes.
    pub is_read: bool,
    /// Whether it wants the checksums.
    pub wants_checksums: bool,
}

/// Result of a probe.
#[derive(Debug, Clone)]
pub enum Probed {
    /// The version, and a right to it.
    Confirmed(ObjectHead),
    /// The origin has to answer the request by itself: it refuses, or the object is of a kind that
    /// is not cached.
    Pass,
}

#[derive(Debug, Clone)]
struct Last {
    sent: Duration,
    result: Probed,
}

type Lane = Arc<tokio::sync::Mutex<Option<Last>>>;

/// Probes in progress.
#[derive(Debug, Default)]
pub struct Probes {
    lanes: Mutex<HashMap<ProbeNeed, Lane>>,
}

/// A request's part in a lane.
struct InLane<'a> {
    probes: &'a Probes,
    need: ProbeNeed,
    lane: Option<Lane>,
}

impl Drop for InLane<'_> {
    fn drop(&mut self) {
        let mut lanes = self.probes.lanes.lock();
        self.lane = None;
        if lanes.get(&self.need).is_some_and(|lane| Arc::strong_count(lane) == 1) {
            lanes.remove(&self.need);
        }
    }
}

impl Shared {
    /// Confirms version and right for a request that arrived at `arrived`.
    pub(super) async fn probe(
        &self,
        request: &ObjectRequest,
        need: ProbeNeed,
        holding: Holding,
        arrived: Duration,
        has_own_key: bool,
    ) -> Probed {
        let lane = Arc::clone(self.probes.lanes.lock().entry(need).or_default());
        let in_lane = InLane { probes: &self.probes, need, lane: Some(lane) };
        let lane = in_lane.lane.as_ref().expect("just set");
        let mut last = lane.lock().await;
        if let Some(last) = last.as_ref().filter(|last| last.sent >= arrived) {
            return last.result.clone();
        }
        let sent = self.now();
        let result = self.send_probe(request, need, holding, sent, has_own_key).await;
        *last = Some(Last { sent, result: result.clone() });
        drop(last);
        result
    }

    async fn send_probe(
        &self,
        request: &ObjectRequest,
        need: ProbeNeed,
        holding: Holding,
        sent: Duration,
        has_own_key: bool,
    ) -> Probed {
        let by_get = has_own_key && need.is_read && !need.wants_checksums;
        let Some(head) = self.ask(request, need, holding, sent, by_get.then_some(None)).await
        else {
            return Probed::Pass;
        };
        if !by_get && need.is_read && head.has_own_key() {
            let etag = Some(&head);
            let Some(_) = self.ask(request, need, holding, sent, Some(etag)).await else {
                return Probed::Pass;
            };
        }
        let has_own_key = head.has_own_key();
        let right = if need.is_read || !has_own_key { Right::Read } else { Right::Head };
        self.rights.lock().on_granted(holding, right, sent);
        self.versions.lock().on_answer(need.object, head.etag().clone(), head.clone(), sent);
        Probed::Confirmed(head)
    }

    /// Sends a HEAD, or a GET of the first byte, of the version `one_byte_of` if that is known.
    #[expect(clippy::option_option, reason = "a GET may have a version or not")]
    async fn ask(
        &self,
        request: &ObjectRequest,
        need: ProbeNeed,
        holding: Holding,
        sent: Duration,
        one_byte_of: Option<Option<&ObjectHead>>,
    ) -> Option<ObjectHead> {
        add(&self.counters.probes, 1);
        let mut headers = HeaderMap::new();
        let method = if let Some(version) = one_byte_of {
            headers.insert(header::RANGE, HeaderValue::from_static("bytes=0-0"));
            if let Some(version) = version {
                let etag = HeaderValue::from_str(version.etag().as_str()).ok()?;
                headers.insert(header::IF_MATCH, etag);
            }
            Method::GET
        } else {
            if need.wants_checksums {
                headers.insert(CHECKSUM_MODE, HeaderValue::from_static("ENABLED"));
            }
            Method::HEAD
        };
        let target = OriginTarget::Object(request.object.clone());
        let asked = OriginRequest::new(method, target, headers);
        let answer = self.origin.send(&request.principal, asked).await.ok()?;
        let (head, _) = answer.into_parts();
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND]
            .contains(&head.status)
        {
            // Only this principal's right: another one may see the object.
            self.rights.lock().on_refused(holding, sent);
        }
        ObjectHead::of(&head, need.wants_checksums && one_byte_of.is_none())
    }
}
