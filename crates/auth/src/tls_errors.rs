//! What went wrong with a TLS connection, in words that name the fix.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, pki_types::UnixTime};

/// A time for people.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Why a TLS connection failed, if it was TLS that failed.
pub fn in_words(error: &io::Error) -> Option<String> {
    let error: &Error = error.get_ref()?.downcast_ref()?;
    Some(match error {
        Error::InvalidCertificate(problem) => certificate(problem),
        Error::AlertReceived(alert) => refused(*alert),
        Error::NoCertificatesPresented => {
            "the other side showed no certificate; set FOREBAY_TLS_CERTIFICATE and FOREBAY_TLS_KEY there"
                .to_owned()
        }
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "the other side does not speak TLS; if it is a node of this machine without TLS, use tcp://"
                .to_owned()
        }
        Error::PeerIncompatible(_) => {
            "the other side does not speak TLS 1.3; is it a forebay node?".to_owned()
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
            "the other side's certificate was signed by another authority than the one named here; \
             FOREBAY_TLS_CA (of a client), `tls_clients` and `cluster_authority` (of a node) name the one that signs"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the node's certificate is for another name; use one of its names in tls://HOST:PORT, or have \
             this one added (subjectAltName)"
                .to_owned()
        }
        other => format!("the other side's certificate cannot be used: {other}"),
    }
}

fn expired(ago: &str) -> String {
    format!(
        "the other side's certificate expired {ago} ago by this machine's clock; renew it, or set the clock"
    )
}

fn not_yet(apart: &str) -> String {
    format!(
        "the other side's certificate is not valid before {apart} from now; do the clocks of the two machines agree?"
    )
}

fn refused(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            "the other side says that our certificate has expired or is not valid yet; renew it, or compare \
             the clocks of the two machines"
                .to_owned()
        }
        AlertDescription::CertificateRequired => {
            "the node wants a certificate; set FOREBAY_TLS_CERTIFICATE and FOREBAY_TLS_KEY".to_owned()
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the other side does not know the authority that signed our certificate; have it signed by the one \
             that the node's `tls_clients` names"
                .to_owned()
        }
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate => {
            "the other side refuses our certificate; docs/security.md says how to make one".to_owned()
        }
        other => format!("the other side broke off: {other:?}"),
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
