//! `forebay reference`: prints the reference pages, which are generated from the definitions of settings and commands.

use clap::{Args, CommandFactory, ValueEnum};

use super::Cli;
use crate::settings::reference_page;
use forebay_terminal::{OutputError, print};

/// Print a page of the reference as Markdown
#[derive(Debug, Args)]
pub struct ReferenceArgs {
    /// The page to print.
    #[arg(value_enum)]
    page: Page,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Page {
    /// The settings of the server.
    Settings,
    /// The commands and their flags.
    Commands,
}

const COMMANDS_HEAD: &str = "\
# Commands of `forebay`

This page is printed by `forebay reference commands`. The flags of `forebay serve` are the
[settings](settings.md).
";

/// Prints the page.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(args: &ReferenceArgs) -> Result<(), OutputError> {
    print(match args.page {
        Page::Settings => reference_page(),
        Page::Commands => commands_page(),
    })
}

fn commands_page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = COMMANDS_HEAD.to_owned();
    for command in root.get_subcommands_mut() {
        add_command(&mut page, "forebay", command);
    }
    page
}

/// Adds a section for a command and for each of its subcommands. Skips hidden commands.
fn add_command(page: &mut String, parent: &str, command: &mut clap::Command) {
    let name = format!("{parent} {}", command.get_name());
    if command.get_name() == "help" || command.is_hide_set() {
        return;
    }
    let text = match command.get_name() {
        "serve" => command
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default(),
        _ => command
            .clone()
            .term_width(100)
            .render_long_help()
            .to_string(),
    };
    page.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", tidy(&text)));
    for below in command.get_subcommands_mut() {
        add_command(page, &name, below);
    }
}

/// Removes trailing spaces of lines.
fn tidy(text: &str) -> String {
    text.trim_end()
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}
