//! Collections of the documents server as tables: `documents.shop.names` is the collection `names` of the database
//! `shop`.
//!
//! A sample of a collection's documents tells its columns. Conditions of a query become a filter of MongoDB where they
//! mean the same, so that the documents server answers them from its cache, by its indexes, or while it scans. The
//! documents server also checks the rights of the user.
#![forbid(unsafe_code)]

mod column;
mod filter;
mod groups;
mod pattern;
mod reader;
mod rows;
mod scan;
mod table;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::TableProvider;
use datafusion::error::Result;
use datafusion::optimizer::OptimizerRule;
use forebay_documents::{Action, ClientContext, Documents};
use forebay_tables::Source;
use parking_lot::Mutex;

use crate::groups::CountedDocuments;
use crate::reader::{Reader, Version};
use crate::table::CollectionTable;

/// The name of the source.
const SOURCE: &str = "documents";
/// Maximum number of tables that are kept open.
const OPENED_MAX: usize = 1_000;

/// The users of the tables server, as clients of the documents server.
pub trait Clients: Debug + Send + Sync {
    /// Returns the client that a user is, with the rights that the user has now; without a user, the client of a
    /// connection that has not authenticated.
    fn client(&self, user: Option<&str>) -> ClientContext;
}

/// The collections.
pub struct Collections {
    documents: Arc<Documents>,
    clients: Arc<dyn Clients>,
    opened: Mutex<HashMap<Key, Opened>>,
}

/// A user, a database and a collection.
type Key = (Option<String>, String, String);

/// A table, and the version of the collection that it was opened for.
struct Opened {
    version: Version,
    table: Arc<CollectionTable>,
}

impl Debug for Collections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Collections")
    }
}

impl Collections {
    /// Returns the collections of a documents server.
    pub fn new(documents: Arc<Documents>, clients: Box<dyn Clients>) -> Collections {
        Collections {
            documents,
            clients: clients.into(),
            opened: Mutex::default(),
        }
    }
}

#[async_trait]
impl Source for Collections {
    fn name(&self) -> &str {
        SOURCE
    }

    fn listed(&self, user: Option<&str>) -> Vec<String> {
        let rights = self.clients.client(user).rights;
        let mut names: Vec<String> = self
            .documents
            .namespaces()
            .into_iter()
            .map(|namespace| namespace.db)
            .filter(|db| rights.allow_on(Action::Read, db))
            .collect();
        names.dedup();
        names
    }

    fn has_schema(&self, name: &str) -> bool {
        self.documents
            .namespaces()
            .iter()
            .any(|namespace| namespace.db == name)
    }

    fn tables(&self, schema: &str) -> Vec<String> {
        let namespaces = self.documents.namespaces().into_iter();
        namespaces
            .filter(|namespace| namespace.db == schema)
            .map(|namespace| namespace.collection)
            .collect()
    }

    fn rules(&self) -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
        vec![Arc::new(CountedDocuments)]
    }

    async fn table(
        &self,
        user: Option<&str>,
        schema: &str,
        name: &str,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        let reader = Reader::new(&self.documents, &self.clients, user, schema, name);
        let Some(version) = reader.version() else {
            return Ok(None);
        };
        let key = (user.map(str::to_owned), schema.to_owned(), name.to_owned());
        if let Some(opened) = self.opened.lock().get(&key)
            && opened.version == version
        {
            return Ok(Some(Arc::clone(&opened.table) as _));
        }
        let table = Arc::new(CollectionTable::open(reader, version.clone()).await?);
        let mut opened = self.opened.lock();
        if opened.len() >= OPENED_MAX {
            opened.clear();
        }
        let kept = Arc::clone(&table);
        opened.insert(
            key,
            Opened {
                version,
                table: kept,
            },
        );
        Ok(Some(table))
    }
}
