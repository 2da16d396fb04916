//! Generates the reference page of the settings.

use super::{DEFINITIONS, Definition};

const HEAD: &str = "\
# Settings of `forebay serve`

This page is printed by `forebay reference settings`.

A setting can be given as a flag (`--documents-bucket-values-max 65536`), as an environment variable
(`FOREBAY_DOCUMENTS_BUCKET_VALUES_MAX=65536`) or as a key of the TOML file that `--config` or `FOREBAY_CONFIG` names
(`documents_bucket_values_max = 65536`). A flag wins over the environment, the environment over the file, the file over the
default. Bytes may be written with `KiB`, `MiB`, `GiB` or `TiB`.

The prefix of a name is the part of the server that uses the setting: `mongodb-` for MongoDB's protocol, `documents-` for the
store, caches and queries behind it, `upstream-` for the proxy in front of another server. Names without a prefix apply
to the whole process.
";

/// Returns the page as Markdown.
pub fn reference_page() -> String {
    let sections = DEFINITIONS.iter().map(section);
    std::iter::once(HEAD.to_owned()).chain(sections).collect()
}

fn section(definition: &Definition) -> String {
    let default = match &*definition.default_text() {
        "" => "none".to_owned(),
        default => format!("`{default}`"),
    };
    format!(
        "\n## `{key}`\n\n{doc}\n\n- values: {values}\n- default: {default}\n- environment: `{environment}`\n- file: `{file}`\n",
        key = definition.key,
        doc = definition.doc,
        values = definition.kind.describe(),
        environment = definition.environment(),
        file = definition.file_key(),
    )
}
