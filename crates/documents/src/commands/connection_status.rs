//! `connectionStatus`: the authenticated user of this connection.

use bson::{RawArrayBuf, rawdoc};

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "connectionStatus",
    help: "shows the authenticated user of this connection",
    known: Known::Only(&["showPrivileges"]),
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    let mut users = RawArrayBuf::new();
    let mut roles = RawArrayBuf::new();
    if let Some(user) = &request.client.user {
        users.push(rawdoc! { "user": user.name.as_str(), "db": user.db.as_str() });
        for role in request.client.rights.roles() {
            roles.push(rawdoc! { "role": role.name(), "db": role.db() });
        }
    }
    let mut info = rawdoc! { "authenticatedUsers": users, "authenticatedUserRoles": roles };
    if request.arguments.flag("showPrivileges")? {
        info.append(
            bson::cstr!("authenticatedUserPrivileges"),
            RawArrayBuf::new(),
        );
    }
    Ok(rawdoc! { "authInfo": info, "ok": 1.0 })
}
