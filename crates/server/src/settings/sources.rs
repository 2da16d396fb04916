//! Reads settings from flags, the environment and the configuration file, in this order of precedence.

use std::path::{Path, PathBuf};

use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, ArgAction, ArgMatches};

use super::{DEFINITIONS, Definition, Kind, Settings, Value};

/// Flag and environment variable for the path of the configuration file.
const CONFIG_KEY: &str = "config";
const CONFIG_ENVIRONMENT: &str = "FOREBAY_CONFIG";
/// Prefix of the environment variables of settings.
const PREFIX: &str = "FOREBAY_";
/// Environment variables with this prefix that are not settings.
const OTHER_VARIABLES: [&str; 4] = [
    CONFIG_ENVIRONMENT,
    "FOREBAY_KERNEL_CACHE",
    "FOREBAY_PASSWORD",
    "FOREBAY_URI",
];

/// Why settings are refused. The operator can correct each of these errors.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The configuration file is not TOML.
    #[error("{path} is not a configuration file: {source}")]
    Toml {
        path: PathBuf,
        source: Box<toml::de::Error>,
    },
    /// A key of the file is not a setting.
    #[error("{path}: there is no setting '{key}' ({hint})")]
    UnknownKey {
        path: PathBuf,
        key: String,
        hint: String,
    },
    /// A flag has no effect because of other settings.
    #[error("--{flag} has no effect {beside}")]
    Idle {
        flag: &'static str,
        beside: &'static str,
    },
    /// A value has the wrong type or is outside its limits.
    #[error("{origin} {problem}, but it is '{value}'")]
    Value {
        origin: String,
        problem: String,
        value: String,
    },
}

/// The values from each source, not yet validated.
#[derive(Debug, Default)]
pub struct Sources {
    flags: Vec<(&'static str, String)>,
    environment: Vec<(&'static str, String)>,
    file: Option<(PathBuf, toml::Table)>,
}

/// Returns the command-line flags of all settings.
pub fn flags() -> Vec<Arg> {
    let config = Arg::new(CONFIG_KEY)
        .long(CONFIG_KEY)
        .value_name("FILE")
        .help("TOML file with any of these settings, named with `_` instead of dashes (or set FOREBAY_CONFIG)");
    // Users of other servers try `--listen` first: suggest the right flag.
    let listen = Arg::new("listen")
        .long("listen")
        .value_name("HOST:PORT")
        .hide(true)
        .value_parser(UnknownArgumentValueParser::suggest_arg("--mongodb-listen"));
    [config, listen]
        .into_iter()
        .chain(DEFINITIONS.iter().map(flag))
        .collect()
}

/// Returns the environment variables that look like settings but are not. The server warns about them, because a
/// misspelt setting has no effect.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let is_known = |name: &str| {
        OTHER_VARIABLES.contains(&name)
            || DEFINITIONS
                .iter()
                .any(|definition| definition.environment() == name)
    };
    names
        .filter(|name| name.starts_with(PREFIX) && !is_known(name))
        .collect()
}

fn flag(definition: &Definition) -> Arg {
    let default = match &*definition.default_text() {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let help = format!("{}{default}", definition.doc);
    let arg = Arg::new(definition.key).long(definition.key).help(help);
    match definition.kind {
        Kind::Switch => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .hide_possible_values(true)
            .value_name(definition.kind.placeholder()),
        kind => arg.value_name(kind.placeholder()),
    }
}

impl Sources {
    /// Reads the flags, the environment, and the configuration file if a flag or the environment names one.
    ///
    /// # Errors
    /// If the file cannot be read, is not TOML, or names an unknown setting.
    pub fn gather(matches: &ArgMatches) -> Result<Sources, SettingsError> {
        Self::gather_from(matches, |name| std::env::var(name).ok())
    }

    fn gather_from(
        matches: &ArgMatches,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Sources, SettingsError> {
        let flag = |key: &str| matches.get_one::<String>(key).cloned();
        let config = flag(CONFIG_KEY).or_else(|| env(CONFIG_ENVIRONMENT));
        let given = |value: &dyn Fn(&Definition) -> Option<String>| {
            let pairs = DEFINITIONS
                .iter()
                .filter_map(|definition| Some((definition.key, value(definition)?)));
            pairs.collect::<Vec<_>>()
        };
        Ok(Sources {
            flags: given(&|definition| flag(definition.key)),
            environment: given(&|definition| env(&definition.environment())),
            file: config.map(|path| read_file(Path::new(&path))).transpose()?,
        })
    }

    /// Returns the settings, each from the source with the highest precedence that has it.
    ///
    /// # Errors
    /// If a value has the wrong type or is outside its limits, or a flag has no effect.
    pub fn resolve(&self) -> Result<Settings, SettingsError> {
        let settings = Settings::from_values(|definition| self.value(definition))?;
        self.refuse_idle_flags(&settings)?;
        Ok(settings)
    }

    /// Refuses flags that have no effect. Accepts such settings in the environment and the configuration file, because
    /// several servers may share the same environment or file.
    fn refuse_idle_flags(&self, settings: &Settings) -> Result<(), SettingsError> {
        let is_idle = |flag: &str| match flag {
            "data" => settings.memory.then_some("together with --memory"),
            _ if flag.starts_with("upstream-") => {
                settings.upstream.is_empty().then_some("without --upstream")
            }
            _ => None,
        };
        let mut flags = self.flags.iter();
        match flags.find_map(|(flag, _)| Some((flag, is_idle(flag)?))) {
            Some((flag, beside)) => Err(SettingsError::Idle { flag, beside }),
            None => Ok(()),
        }
    }

    /// Returns whether a flag, the environment or the file sets the setting `key`.
    pub fn has(&self, key: &str) -> bool {
        let is_it = |definition: &&Definition| definition.key == key;
        let definition = DEFINITIONS.iter().find(is_it);
        definition.is_some_and(|definition| self.given(definition).is_some())
    }

    fn value(&self, definition: &Definition) -> Result<Value, SettingsError> {
        let (origin, value) = self.find(definition);
        definition
            .kind
            .parse(&value)
            .map_err(|problem| SettingsError::Value {
                origin,
                problem,
                value,
            })
    }

    /// Returns the value with the highest precedence, and its origin for messages.
    fn find(&self, definition: &Definition) -> (String, String) {
        self.given(definition).unwrap_or_else(|| {
            (
                format!("the default of {}", definition.key),
                definition.default.to_owned(),
            )
        })
    }

    /// Returns the value and its origin, as [`Sources::find`] does; `None` if only the default is left.
    fn given(&self, definition: &Definition) -> Option<(String, String)> {
        let of = |given: &[(&str, String)]| {
            let found = given.iter().find(|(key, _)| *key == definition.key);
            found.map(|(_, value)| value.clone())
        };
        if let Some(value) = of(&self.flags) {
            return Some((format!("--{}", definition.key), value));
        }
        if let Some(value) = of(&self.environment) {
            return Some((definition.environment(), value));
        }
        let (path, table) = self.file.as_ref()?;
        let value = table.get(&definition.file_key())?;
        Some((
            format!("{} in {}", definition.file_key(), path.display()),
            plain(value),
        ))
    }
}

/// Formats a TOML value as a user would write it on the command line.
fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Boolean(switch) => switch.to_string(),
        other => format!("of type {}", other.type_str()),
    }
}

fn read_file(path: &Path) -> Result<(PathBuf, toml::Table), SettingsError> {
    let file = |source| SettingsError::File {
        path: path.to_owned(),
        source,
    };
    let text = std::fs::read_to_string(path).map_err(file)?;
    let syntax = |source| SettingsError::Toml {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let table: toml::Table = text.parse().map_err(syntax)?;
    match table.keys().find(|key| !is_known(key)) {
        Some(key) => Err(SettingsError::UnknownKey {
            path: path.to_owned(),
            hint: hint(key),
            key: key.clone(),
        }),
        None => Ok((path.to_owned(), table)),
    }
}

fn is_known(key: &str) -> bool {
    DEFINITIONS
        .iter()
        .any(|definition| definition.file_key() == key)
}

/// Returns a hint for the operator who used an unknown key.
fn hint(key: &str) -> String {
    let with_underscores = key.replace('-', "_");
    match is_known(&with_underscores) {
        true => format!("write {with_underscores}"),
        false => "`forebay reference settings` lists them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        flags_given: &[&str],
        env: &[(&str, &str)],
        file: Option<&str>,
    ) -> Result<Settings, SettingsError> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(flags_given.iter().map(|flag| (*flag).to_owned()));
        if let Some(text) = file {
            let path = folder.path().join("forebay.toml");
            std::fs::write(&path, text).expect("a file in the folder");
            arguments.extend(["--config".to_owned(), path.display().to_string()]);
        }
        let matches = clap::Command::new("serve")
            .args(flags())
            .get_matches_from(arguments);
        let env = |name: &str| {
            env.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Sources::gather_from(&matches, env)?.resolve()
    }

    #[test]
    fn every_default_is_valid_and_every_key_is_unique() {
        let settings = resolve(&[], &[], None).expect("defaults are valid");
        assert_eq!(settings.mongodb_listen.port(), 27017);
        assert_eq!(settings.documents_store_cache_bytes, 0);
        assert_eq!(settings.pattern_limits(), forebay_text::Limits::default());
        let mut keys: Vec<_> = DEFINITIONS
            .iter()
            .map(|definition| definition.key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), DEFINITIONS.len());
    }

    #[test]
    fn flag_wins_over_environment_over_file_over_default() {
        let file = Some("documents_bucket_values_max = 10\ndevices = \"host:2\"\nauth = true");
        let env = [("FOREBAY_DOCUMENTS_BUCKET_VALUES_MAX", "20")];
        let only_default = resolve(&[], &[], None).expect("valid");
        assert_eq!(only_default.documents_bucket_values_max, 131_072);
        let with_file = resolve(&[], &[], file).expect("valid");
        assert_eq!(
            (with_file.documents_bucket_values_max, with_file.auth),
            (10, true)
        );
        assert_eq!(
            resolve(&[], &env, file)
                .expect("valid")
                .documents_bucket_values_max,
            20
        );
        let all = resolve(
            &["--documents-bucket-values-max", "30", "--auth=false"],
            &env,
            file,
        )
        .expect("valid");
        assert_eq!(
            (
                all.documents_bucket_values_max,
                all.auth,
                all.devices.as_str()
            ),
            (30, false, "host:2")
        );
    }

    #[test]
    fn the_listen_of_other_servers_is_refused_with_the_name_here() {
        let command = clap::Command::new("serve").args(flags());
        let error = command
            .try_get_matches_from(["serve", "--listen", "127.0.0.1:0"])
            .expect_err("there is no such flag");
        assert!(error.to_string().contains("--mongodb-listen"), "{error}");
    }

    #[test]
    fn misspelt_variables_are_found() {
        let names = ["FOREBAY_MEMRY", "FOREBAY_MEMORY", "FOREBAY_CONFIG", "HOME"];
        let unknown = unknown_variables(names.into_iter().map(str::to_owned));
        assert_eq!(unknown, ["FOREBAY_MEMRY"]);
    }

    #[test]
    fn switches_need_no_value() {
        let settings = resolve(&["--memory", "--auth"], &[], None).expect("valid");
        assert!(settings.memory && settings.auth);
    }

    #[test]
    fn faults_name_their_source() {
        let text =
            |result: Result<Settings, SettingsError>| result.expect_err("invalid").to_string();
        assert!(
            text(resolve(&["--connections-max", "0"], &[], None))
                .starts_with("--connections-max must be from 1")
        );
        let env = [("FOREBAY_MONGODB_LISTEN", "nowhere")];
        assert!(
            text(resolve(&[], &env, None)).starts_with("FOREBAY_MONGODB_LISTEN must be an address")
        );
        assert!(
            text(resolve(&[], &[], Some("log_format = \"xml\""))).starts_with("log_format in ")
        );
        assert!(
            text(resolve(&[], &[], Some("colour = 1"))).contains("there is no setting 'colour'")
        );
        assert!(
            text(resolve(&[], &[], Some("mongodb-listen = \"127.0.0.1:1\"")))
                .ends_with("(write mongodb_listen)")
        );
        assert!(text(resolve(&[], &[], Some("a = = 1"))).contains("is not a configuration file"));
        assert!(text(resolve(&["--config", "/nonexistent"], &[], None)).contains("cannot read"));
    }
}
