//! AWS profiles (`~/.aws/credentials`, `~/.aws/config`), which AWS tools share.
//!
//! `object_store` reads the environment only, but most users keep their keys in these files.

use std::{collections::HashMap, env, fs, path::PathBuf};

/// Keys of a profile that are used, under `object_store`'s names.
const KEYS: [&str; 5] =
    ["aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region", "endpoint_url"];

/// The settings of a profile, by default the one that `AWS_PROFILE` names; empty if there are none.
pub fn read(profile: Option<&str>) -> HashMap<String, String> {
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let file = |variable: &str, name: &str| {
        let path =
            env::var_os(variable).map_or_else(|| home.join(".aws").join(name), PathBuf::from);
        fs::read_to_string(path).unwrap_or_default()
    };
    let current = || env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
    let profile = profile.map_or_else(current, str::to_owned);
    let mut settings = section(&file("AWS_CONFIG_FILE", "config"), &profile);
    settings.extend(section(&file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), &profile));
    settings
}

/// One section of such a file: `[name]` in credentials, `[profile name]` in config.
fn section(text: &str, profile: &str) -> HashMap<String, String> {
    let mut settings = HashMap::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = header.trim();
            inside = name.strip_prefix("profile ").map_or(name, str::trim) == profile;
        } else if inside
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            let key = key.trim().to_ascii_lowercase();
            if KEYS.contains(&key.as_str()) {
                settings.insert(key, value.trim().to_owned());
            }
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_current_profile_is_read() {
        let text = "[default]\naws_access_key_id = A\n# aws_session_token = no\n\
                    [profile work]\naws_access_key_id=B\nregion = eu-west-1\noutput = json\n";
        assert_eq!(
            section(text, "default"),
            HashMap::from([("aws_access_key_id".into(), "A".into())])
        );
        let work = section(text, "work");
        assert_eq!((work.len(), work["region"].as_str()), (2, "eu-west-1"));
        assert!(section(text, "other").is_empty());
        assert!(section("[default\nx", "default").is_empty());
    }
}
