//! The settings of an S3 client: options of the caller, then the environment, then a profile.
//!
//! A key pair, its session token and its profile belong together. So a key pair or a profile that
//! the caller names replaces the whole identity of the environment.

use std::{collections::HashMap, env};

use object_store::{
    Error as StoreError,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
};

use crate::{Credentials, Options, profile};

/// Settings that say who the client is.
const IDENTITY: [AmazonS3ConfigKey; 3] =
    [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::SecretAccessKey, AmazonS3ConfigKey::Token];

/// Variables that name an identity, besides the machine's role.
const IDENTITY_VARIABLES: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The client for a bucket.
pub fn builder(bucket: String, options: &Options) -> Result<AmazonS3Builder, StoreError> {
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    configured(options, variables, profile::read).map(|builder| builder.with_bucket_name(bucket))
}

/// Whether there are credentials for S3 besides the machine's role.
pub fn has_identity(options: &Options) -> bool {
    options.anonymous
        || options.credentials.is_some()
        || options.profile.is_some()
        || IDENTITY_VARIABLES.iter().any(|name| env::var_os(name).is_some())
        || profile::read(None).contains_key("aws_access_key_id")
}

/// The defect of the profile that the caller names, if any.
pub fn profile_problem(options: &Options) -> Option<String> {
    let named = options.profile.as_deref()?;
    if options.credentials.is_some() {
        return Some("a profile and a key pair are given; give one of them".to_owned());
    }
    (!profile::read(Some(named)).contains_key("aws_access_key_id")).then(|| {
        format!(
            "the profile `{}` has no key in ~/.aws/credentials or ~/.aws/config; add it with \
             `aws configure --profile`, or name another",
            named.escape_debug()
        )
    })
}

fn configured(
    options: &Options,
    variables: impl IntoIterator<Item = (String, String)>,
    read_profile: impl Fn(Option<&str>) -> HashMap<String, String>,
) -> Result<AmazonS3Builder, StoreError> {
    let mut builder = AmazonS3Builder::new();
    let names_identity = options.credentials.is_some() || options.profile.is_some();
    for (name, value) in variables.into_iter().filter(|(name, _)| name.starts_with("AWS_")) {
        // Other variables of AWS are not settings of the client.
        let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() else { continue };
        if !(names_identity && IDENTITY.contains(&key)) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(Credentials { access_key, secret_key, session_token }) = &options.credentials {
        builder = builder.with_access_key_id(access_key).with_secret_access_key(secret_key);
        if let Some(token) = session_token {
            builder = builder.with_token(token);
        }
    }
    if builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_none() {
        for (key, value) in read_profile(options.profile.as_deref()) {
            let key: AmazonS3ConfigKey = key.parse()?;
            if builder.get_config_value(&key).is_none() {
                builder = builder.with_config(key, value);
            }
        }
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVIRONMENT: [(&str, &str); 4] = [
        ("AWS_ACCESS_KEY_ID", "of-environment"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "token-of-environment"),
        ("AWS_REGION", "eu-west-1"),
    ];

    /// Access key, session token and region.
    fn settings(options: &Options) -> [Option<String>; 3] {
        let variables =
            ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter();
        let read_profile = |name: Option<&str>| {
            let key = format!("of-profile-{}", name.unwrap_or("default"));
            HashMap::from([
                ("aws_access_key_id".to_owned(), key),
                ("aws_secret_access_key".to_owned(), "secret".to_owned()),
                ("region".to_owned(), "ap-south-1".to_owned()),
            ])
        };
        let builder = configured(options, variables, read_profile).unwrap();
        [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::Token, AmazonS3ConfigKey::Region]
            .map(|key| builder.get_config_value(&key))
    }

    fn some(values: [&str; 3]) -> [Option<String>; 3] {
        values.map(|value| (!value.is_empty()).then(|| value.to_owned()))
    }

    #[test]
    fn a_named_identity_replaces_the_whole_one_of_the_environment() {
        let options = Options::default();
        let environment = ["of-environment", "token-of-environment", "eu-west-1"];
        assert_eq!(settings(&options), some(environment));

        let pair = |session_token: Option<&str>| {
            Some(Credentials {
                access_key: "given".to_owned(),
                secret_key: "secret".to_owned(),
                session_token: session_token.map(str::to_owned),
            })
        };
        let given = Options { credentials: pair(None), ..options.clone() };
        assert_eq!(settings(&given), some(["given", "", "eu-west-1"]), "no other key's token");
        let given = Options { credentials: pair(Some("its token")), ..options.clone() };
        assert_eq!(settings(&given), some(["given", "its token", "eu-west-1"]));

        let named = Options { profile: Some("work".to_owned()), ..options };
        assert_eq!(settings(&named), some(["of-profile-work", "", "eu-west-1"]));
    }

    #[test]
    fn a_given_region_is_used() {
        let options = Options { region: Some("us-east-2".to_owned()), ..Options::default() };
        assert_eq!(settings(&options)[2].as_deref(), Some("us-east-2"));
    }
}
