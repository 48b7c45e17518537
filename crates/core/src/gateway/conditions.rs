//! Conditional requests, in the order of RFC 9110, section 13.2.2.
//!
//! | header | false means |
//! |---|---|
//! | `If-Match`, else `If-Unmodified-Since` | `412 Precondition Failed` |
//! | `If-None-Match`, else `If-Modified-Since` | `304 Not Modified` |
//! | `If-Range`, with `Range` | the whole object instead of the range |
//!
//! A date that is not well-formed is ignored, as the RFC says. Times have a resolution of one
//! second.

use super::etag::{EtagList, StrongEtag};

/// A point in time as HTTP dates name it: seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HttpTime(pub i64);

/// Names of the months in dates.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The conditions of a `GetObject` or `HeadObject`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `If-Match`.
    pub if_match: Option<EtagList>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<HttpTime>,
    /// `If-None-Match`.
    pub if_none_match: Option<EtagList>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<HttpTime>,
    /// `If-Range`.
    pub if_range: Option<IfRange>,
}

/// The value of an `If-Range` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IfRange {
    /// The range is meant for this version.
    Etag(StrongEtag),
    /// The range is meant for the version of this time.
    Date(HttpTime),
    /// A weak or malformed validator: never true.
    Never,
}

/// The validators of a version.
#[derive(Debug, Clone, Copy)]
pub struct Validators<'a> {
    /// Its tag.
    pub etag: &'a StrongEtag,
    /// When it was written; `None` if the origin does not say.
    pub last_modified: Option<HttpTime>,
}

/// Result of the conditions on one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request is carried out, with its range if `with_range`.
    Proceed {
        /// Whether the range applies.
        with_range: bool,
    },
    /// `304 Not Modified`.
    NotModified,
    /// `412 Precondition Failed`.
    PreconditionFailed,
}

impl Conditions {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The conditions on a version.
    pub fn check(&self, version: Validators<'_>) -> Outcome {
        let Validators { etag, last_modified } = version;
        let may_proceed = match (&self.if_match, self.if_unmodified_since) {
            (Some(tags), _) => tags.matches_strongly(etag),
            (None, Some(since)) => last_modified.is_none_or(|modified| modified <= since),
            (None, None) => true,
        };
        if !may_proceed {
            return Outcome::PreconditionFailed;
        }
        let is_modified = match (&self.if_none_match, self.if_modified_since) {
            (Some(tags), _) => !tags.matches_weakly(etag),
            (None, Some(since)) => last_modified.is_none_or(|modified| modified > since),
            (None, None) => true,
        };
        if !is_modified {
            return Outcome::NotModified;
        }
        let with_range = match &self.if_range {
            None => true,
            Some(IfRange::Etag(wanted)) => wanted == etag,
            Some(IfRange::Date(wanted)) => last_modified == Some(*wanted),
            Some(IfRange::Never) => false,
        };
        Outcome::Proceed { with_range }
    }
}

impl HttpTime {
    /// Parses an HTTP date in one of its three forms (RFC 9110, section 5.6.7). `None` if it is
    /// malformed. Years of two digits are from 1970 to 2069.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim();
        if text.len() > 64 {
            return None;
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (day, month, year, clock) = match words[..] {
            // Sun, 06 Nov 1994 08:49:37 GMT
            [_, day, month, year, clock, "GMT"] if year.len() == 4 => (day, month, year, clock),
            // Sunday, 06-Nov-94 08:49:37 GMT
            [_, date, clock, "GMT"] => {
                let mut parts = date.split('-');
                let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
                if year.len() != 2 || parts.next().is_some() {
                    return None;
                }
                (day, month, year, clock)
            }
            // Sun Nov  6 08:49:37 1994
            [_, month, day, clock, year] if year.len() == 4 => (day, month, year, clock),
            _ => return None,
        };
        let year = match (year.len(), digits(year)?) {
            (2, short @ 0..70) => 2000 + short,
            (2, short) => 1900 + short,
            (_, year) => year,
        };
        let month = MONTHS.iter().position(|name| *name == month)?;
        let day = digits(day).filter(|day| (1..=31).contains(day))?;
        let mut clock = clock.split(':').map(|part| digits(part).filter(|_| part.len() == 2));
        let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
        if clock.next().is_some() || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let days = days_since_1970(year, i64::try_from(month).ok()? + 1, day);
        Some(Self(((days * 24 + hour) * 60 + minute) * 60 + second))
    }
}

fn digits(text: &str) -> Option<i64> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last day of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MODIFIED: HttpTime = HttpTime(784_111_777);

    fn etag(text: &str) -> StrongEtag {
        StrongEtag::parse(format!("\"{text}\"").as_bytes()).unwrap()
    }

    fn check(conditions: &Conditions) -> Outcome {
        let (tag, last_modified) = (etag("a"), Some(MODIFIED));
        conditions.check(Validators { etag: &tag, last_modified })
    }

    fn tags(text: &str) -> Option<EtagList> {
        EtagList::parse(text.as_bytes())
    }

    #[test]
    fn the_three_forms_of_a_date_are_the_same_time() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(HttpTime::parse(text.as_bytes()), Some(MODIFIED), "{text}");
        }
        let parse = |text: &str| HttpTime::parse(text.as_bytes());
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:00 GMT"), Some(HttpTime(0)));
        assert_eq!(parse("Thu, 29 Feb 2024 12:00:00 GMT"), Some(HttpTime(1_709_208_000)));
        for text in [
            "",
            "yesterday",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Now 1994 08:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn conditions_are_checked_in_the_order_of_the_rfc() {
        let all = Outcome::Proceed { with_range: true };
        let none = Conditions::default();
        assert_eq!(check(&none), all);
        let before = Some(HttpTime(MODIFIED.0 - 1));
        let after = Some(HttpTime(MODIFIED.0 + 1));

        let matching = Conditions { if_match: tags("\"a\""), ..none.clone() };
        assert_eq!(check(&matching), all);
        // S3 documents this pair: the tag decides, the date is not looked at.
        let outdated = Conditions { if_unmodified_since: before, ..matching.clone() };
        assert_eq!(check(&outdated), all);
        let outdated = Conditions { if_unmodified_since: before, ..none.clone() };
        assert_eq!(check(&outdated), Outcome::PreconditionFailed);
        let on_time = Conditions { if_unmodified_since: Some(MODIFIED), ..none.clone() };
        assert_eq!(check(&on_time), all);

        let known = Conditions { if_none_match: tags("W/\"a\""), ..none.clone() };
        assert_eq!(check(&known), Outcome::NotModified);
        let known = Conditions { if_modified_since: before, ..known };
        assert_eq!(check(&known), Outcome::NotModified);
        let other =
            Conditions { if_none_match: tags("\"b\""), if_modified_since: after, ..none.clone() };
        assert_eq!(check(&other), all);
        let unmodified = Conditions { if_modified_since: Some(MODIFIED), ..none.clone() };
        assert_eq!(check(&unmodified), Outcome::NotModified);

        // 412 comes before 304.
        let both =
            Conditions { if_match: tags("\"b\""), if_none_match: tags("\"a\""), ..none.clone() };
        assert_eq!(check(&both), Outcome::PreconditionFailed);
        // And 304 before the range.
        let ranged = Conditions {
            if_none_match: tags("\"a\""),
            if_range: Some(IfRange::Never),
            ..none.clone()
        };
        assert_eq!(check(&ranged), Outcome::NotModified);
    }

    #[test]
    fn if_range_chooses_between_the_range_and_the_whole_object() {
        let with =
            |if_range| check(&Conditions { if_range: Some(if_range), ..Conditions::default() });
        let range = Outcome::Proceed { with_range: true };
        let whole = Outcome::Proceed { with_range: false };
        assert_eq!(with(IfRange::Etag(etag("a"))), range);
        assert_eq!(with(IfRange::Etag(etag("b"))), whole);
        assert_eq!(with(IfRange::Date(MODIFIED)), range);
        assert_eq!(with(IfRange::Date(HttpTime(MODIFIED.0 + 1))), whole);
        assert_eq!(with(IfRange::Never), whole);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_date_or_not(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            HttpTime::parse(&value);
            EtagList::parse(&value);
            StrongEtag::parse(&value);
        }

        #[test]
        fn days_follow_each_other(year in 1600..3000_i64) {
            prop_assert_eq!(
                days_since_1970(year, 12, 31) + 1,
                days_since_1970(year + 1, 1, 1)
            );
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let february = days_since_1970(year, 3, 1) - days_since_1970(year, 2, 1);
            prop_assert_eq!(february, if leap { 29 } else { 28 });
        }
    }
}
