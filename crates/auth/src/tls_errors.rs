//! Messages for TLS failures, each with the remedy.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, pki_types::UnixTime};

/// A duration in its largest sensible unit.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The message for a connection that failed in TLS. `None` for other errors.
pub fn in_words(error: &io::Error) -> Option<String> {
    let error: &Error = error.get_ref()?.downcast_ref()?;
    Some(match error {
        Error::InvalidCertificate(problem) => certificate(problem),
        Error::AlertReceived(alert) => refused(*alert),
        Error::NoCertificatesPresented => "the peer presented no certificate; \
             set FOREBAY_TLS_CERTIFICATE and FOREBAY_TLS_KEY there"
            .to_owned(),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "the peer does not speak TLS; for a node of this machine without TLS, use tcp://"
                .to_owned()
        }
        Error::PeerIncompatible(_) => {
            "the peer does not speak TLS 1.3; check that it is a forebay node".to_owned()
        }
        other => format!("TLS failed: {other}"),
    })
}

fn certificate(problem: &CertificateError) -> String {
    let apart = |one: &UnixTime, other: &UnixTime| span(one.as_secs().abs_diff(other.as_secs()));
    match problem {
        CertificateError::Expired => expired("some time"),
        CertificateError::ExpiredContext { time, not_after } => expired(&apart(time, not_after)),
        CertificateError::NotValidYet => not_yet("some time"),
        CertificateError::NotValidYetContext { time, not_before } => {
            not_yet(&apart(time, not_before))
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the peer's certificate was signed by another authority than the configured one; \
             set FOREBAY_TLS_CA (client), or `tls_client_ca` and `cluster_ca` (node), \
             to the one that signed it"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the node's certificate is for another name; use one of its names in tls://HOST:PORT, \
             or have this one added (subjectAltName)"
                .to_owned()
        }
        other => format!("the peer's certificate cannot be used: {other}"),
    }
}

fn expired(ago: &str) -> String {
    format!(
        "the peer's certificate expired {ago} ago by this machine's clock; \
         renew it, or set the clock"
    )
}

fn not_yet(apart: &str) -> String {
    format!(
        "the peer's certificate is not valid before {apart} from now; \
         do the clocks of the two machines agree?"
    )
}

fn refused(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            "the peer rejected this certificate as expired or not valid yet; \
             renew it, or compare the clocks of the two machines"
                .to_owned()
        }
        AlertDescription::CertificateRequired => {
            "the node wants a certificate; set FOREBAY_TLS_CERTIFICATE and FOREBAY_TLS_KEY"
                .to_owned()
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the peer does not know the authority that signed this certificate; \
             have it signed by the one that the node's `tls_client_ca` names"
                .to_owned()
        }
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate => {
            "the peer rejected this certificate; docs/guide/security.md describes how to make one"
                .to_owned()
        }
        other => format!("the peer closed the connection: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        assert_eq!(span(5), "5 s");
        assert_eq!(span(600), "10 min");
        assert_eq!(span(10_000), "2 h");
        assert_eq!(span(1_000_000), "11 days");
    }

    #[test]
    fn other_failures_are_not_tls() {
        assert_eq!(in_words(&io::ErrorKind::TimedOut.into()), None);
        let tls = io::Error::new(io::ErrorKind::InvalidData, Error::NoCertificatesPresented);
        assert!(in_words(&tls).unwrap().contains("FOREBAY_TLS_CERTIFICATE"));
    }
}
