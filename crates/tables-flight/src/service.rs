//! The calls of Flight SQL.

use std::sync::Arc;

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any, Command,
    CommandPreparedStatementQuery, DoPutPreparedStatementResult, DoPutUpdateResult,
    ProstMessageExt,
};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, Criteria,
    Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest,
    HandshakeResponse, IpcMessage, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use bytes::Bytes;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::ipc::writer::IpcWriteOptions;
use forebay_tables::SqlError;
use futures_util::future::{BoxFuture, ready};
use prost::Message;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use crate::answer::{self, Messages, messages};
use crate::call::Call;
use crate::client::{Client, Ran};
use crate::door::Door;
use crate::error::{defect, malformed, plain, unknown_command, unsupported};
use crate::listings;
use crate::login::Login;
use crate::parameters::Parameters;
use crate::tickets::{Query, Statement};

/// The actions, and what they do.
const ACTIONS: [(&str, &str); 5] = [
    ("CreatePreparedStatement", "Prepares a statement"),
    ("ClosePreparedStatement", "Forgets a prepared statement"),
    ("CancelFlightInfo", "Cancels a query in progress"),
    ("CancelQuery", "Cancels a query in progress"),
    (
        "CloseSession",
        "Ends the session and the login of the connection",
    ),
];

/// The result of `CloseSession`, of which the crate has no message: the status `CLOSED`.
const SESSION_CLOSED: [u8; 2] = [8, 1];

/// Answers the calls of a connection.
pub(crate) struct Service {
    door: Arc<Door>,
    pub(crate) login: parking_lot::Mutex<Login>,
    /// `None` before the first call that needs a session.
    client: Mutex<Option<Client>>,
}

/// What a client asks to be described.
enum Asked {
    Listing(SchemaRef),
    /// A statement, and the columns of its rows if it returns some.
    Query(Query, Option<SchemaRef>),
}

impl Service {
    pub(crate) fn new(door: Arc<Door>) -> Service {
        Service {
            door,
            login: parking_lot::Mutex::default(),
            client: Mutex::new(None),
        }
    }

    /// Waits for the session of the connection.
    async fn client(&self, call: &Call) -> Result<MappedMutexGuard<'_, Client>, Status> {
        let mut client = MutexGuard::map(self.client.lock().await, |client| {
            let user = &call.identity.user;
            client.get_or_insert_with(|| Client::new(&self.door.tables, user))
        });
        client.enter(call)?;
        Ok(client)
    }

    /// Plans what a descriptor asks for.
    async fn described(&self, request: &Request<FlightDescriptor>) -> Result<Asked, Status> {
        let command = command(&request.get_ref().cmd)?;
        if let Some(columns) = listings::columns(&command) {
            return Ok(Asked::Listing(columns));
        }
        let statement = match command {
            Command::CommandStatementQuery(query) => {
                check_no_transaction(query.transaction_id.as_ref())?;
                Statement::Text(query.query)
            }
            Command::CommandPreparedStatementQuery(query) => Statement::Prepared(handle(&query)?),
            other => return Err(unknown_command(&other)),
        };
        let call = Call::of(request)?;
        let columns = self.client(&call).await?.columns(&statement).await?;
        Ok(Asked::Query(Query::new(statement), columns))
    }

    async fn query(&self, query: Query, call: &Call) -> Result<Messages<FlightData>, Status> {
        let progress = self.door.running.begin(query.number, &call.identity.user);
        let ran = async { self.client(call).await?.query(&query.statement).await };
        let ran = tokio::select! {
            ran = ran => ran?,
            cancelled = progress.cancelled() => return Err(cancelled),
        };
        Ok(match ran {
            Ran::Done => answer::of_batch(RecordBatch::new_empty(Arc::new(Schema::empty()))),
            Ran::Rows(rows, columns) => {
                answer::of_rows(rows, columns, progress, &self.door.settings)
            }
        })
    }

    /// Answers an update, or the parameters of a query.
    async fn put(
        &self,
        command: Command,
        parameters: Option<Parameters>,
        call: Arc<Call>,
    ) -> Result<Vec<u8>, Status> {
        let mut client = self.client(&call).await?;
        let record_count = match command {
            Command::CommandStatementUpdate(update) => {
                check_no_transaction(update.transaction_id.as_ref())?;
                client.update(&update.query).await?
            }
            Command::CommandPreparedStatementUpdate(update) => {
                let handle = text(&update.prepared_statement_handle)?;
                client.update_prepared(&handle, parameters.as_ref()).await?
            }
            Command::CommandPreparedStatementQuery(query) => {
                let handle = handle(&query)?;
                client.bind(&handle, parameters.as_ref(), call).await?;
                let bound = DoPutPreparedStatementResult {
                    prepared_statement_handle: Some(query.prepared_statement_handle),
                };
                return Ok(bound.encode_to_vec());
            }
            other => return Err(unknown_command(&other)),
        };
        Ok(DoPutUpdateResult { record_count }.encode_to_vec())
    }

    async fn create_prepared(&self, action: &Action, call: &Call) -> Result<Vec<u8>, Status> {
        let request: ActionCreatePreparedStatementRequest = unpacked(action)?;
        check_no_transaction(request.transaction_id.as_ref())?;
        let described = self.client(call).await?.prepare(request.query).await?;
        let dataset_schema = match &described.columns {
            Some(columns) => schema_bytes(columns)?,
            None => Bytes::new(),
        };
        let result = ActionCreatePreparedStatementResult {
            prepared_statement_handle: described.handle.into(),
            dataset_schema,
            parameter_schema: schema_bytes(&described.parameters)?,
        };
        Ok(result.as_any().encode_to_vec())
    }

    fn cancel(&self, flight: Option<FlightInfo>, call: &Call) -> Result<i32, Status> {
        let flight = flight.ok_or_else(|| malformed("no flight to cancel"))?;
        let is_cancelled = self.door.running.cancel(&flight, &call.identity.user)?;
        Ok(match is_cancelled {
            true => CancelStatus::Cancelled,
            false => CancelStatus::NotCancellable,
        } as i32)
    }

    /// Runs an action. Returns its result; `None` if it has none.
    async fn act(&self, request: &Request<Action>) -> Result<Option<Vec<u8>>, Status> {
        let (action, call) = (request.get_ref(), Call::of(request)?);
        match &*action.r#type {
            "CreatePreparedStatement" => self.create_prepared(action, &call).await.map(Some),
            "ClosePreparedStatement" => {
                let request: ActionClosePreparedStatementRequest = unpacked(action)?;
                let handle = text(&request.prepared_statement_handle)?;
                self.client(&call).await?.close(&handle)?;
                Ok(None)
            }
            "CancelFlightInfo" => {
                let request = CancelFlightInfoRequest::decode(action.body.clone());
                let status = self.cancel(request.map_err(malformed)?.info, &call)?;
                Ok(Some(CancelFlightInfoResult { status }.encode_to_vec()))
            }
            "CancelQuery" => {
                let request: ActionCancelQueryRequest = unpacked(action)?;
                let flight = FlightInfo::decode(request.info).map_err(malformed)?;
                let result = self.cancel(Some(flight), &call)?;
                let result = ActionCancelQueryResult { result };
                Ok(Some(result.as_any().encode_to_vec()))
            }
            "CloseSession" => {
                *self.client.lock().await = None;
                self.door.logins.forget(&self.login);
                Ok(Some(SESSION_CLOSED.to_vec()))
            }
            "BeginTransaction" | "EndTransaction" | "BeginSavepoint" | "EndSavepoint" => {
                let error = SqlError::unsupported(format!("the action {}", action.r#type));
                let hint = "transactions only read: use the statements BEGIN and COMMIT";
                Err(plain(error.with_hint(hint)))
            }
            other => Err(unsupported(&format!("the action {other}"))),
        }
    }

    /// Gives a token to a client whose header has a password.
    fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Answered<'_, Messages<HandshakeResponse>> {
        Box::pin(async move {
            let call = Call::of(&request)?;
            let token = self.door.logins.token(&call.identity, &self.login);
            let value = MetadataValue::try_from(&*token).map_err(defect)?;
            let answer = HandshakeResponse {
                protocol_version: 0,
                payload: token.into(),
            };
            let mut response = Response::new(messages([answer]));
            response.metadata_mut().insert("authorization", value);
            Ok(response)
        })
    }

    fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Answered<'_, FlightInfo> {
        Box::pin(async move {
            let (ticket, columns) = match self.described(&request).await? {
                Asked::Listing(columns) => {
                    let ticket = Ticket::new(request.get_ref().cmd.clone());
                    (ticket, Some(columns))
                }
                Asked::Query(query, columns) => (query.ticket(), columns),
            };
            let mut info = FlightInfo::new()
                .with_endpoint(FlightEndpoint::new().with_ticket(ticket))
                .with_descriptor(request.into_inner());
            // Without a schema, clients wait until the statement is done.
            if let Some(columns) = columns {
                info = info.try_with_schema(&columns).map_err(defect)?;
            }
            Ok(Response::new(info))
        })
    }

    fn get_schema(&self, request: Request<FlightDescriptor>) -> Answered<'_, SchemaResult> {
        Box::pin(async move {
            let columns = match self.described(&request).await? {
                Asked::Listing(columns) => Some(columns),
                Asked::Query(_, columns) => columns,
            };
            let columns = columns.unwrap_or_else(|| Arc::new(Schema::empty()));
            let schema = schema_bytes(&columns)?;
            Ok(Response::new(SchemaResult { schema }))
        })
    }

    fn do_get(&self, request: Request<Ticket>) -> Answered<'_, Messages<FlightData>> {
        Box::pin(async move {
            let call = Call::of(&request)?;
            let query = match command(&request.get_ref().ticket)? {
                Command::TicketStatementQuery(ticket) => Query::of_ticket(&ticket)?,
                Command::CommandPreparedStatementQuery(query) => {
                    Query::new(Statement::Prepared(handle(&query)?))
                }
                command => {
                    let rows = listings::rows(command, &self.door.tables, &call.identity.user);
                    return Ok(Response::new(answer::of_batch(rows.await?)));
                }
            };
            let answer = self.query(query, &call).await?;
            Ok(Response::new(answer))
        })
    }

    fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answered<'_, Messages<PutResult>> {
        Box::pin(async move {
            let call = Call::of(&request)?;
            let mut received = request.into_inner();
            let mut first = received
                .message()
                .await?
                .ok_or_else(|| malformed("no command"))?;
            let descriptor = first.flight_descriptor.take();
            let descriptor =
                descriptor.ok_or_else(|| malformed("no descriptor in the first message"))?;
            let command = command(&descriptor.cmd)?;
            if let Command::CommandStatementIngest(_) | Command::Unknown(_) = &command {
                return Err(unknown_command(&command));
            }
            let mut data = vec![first];
            while let Some(message) = received.message().await? {
                data.push(message);
            }
            let parameters = Parameters::decode(data).await?;
            let result = self.put(command, parameters, call).await?;
            let app_metadata = result.into();
            let result = PutResult { app_metadata };
            Ok(Response::new(messages([result])))
        })
    }

    fn do_action(&self, request: Request<Action>) -> Answered<'_, Messages<arrow_flight::Result>> {
        Box::pin(async move {
            let body = self.act(&request).await?;
            let results = body.map(arrow_flight::Result::new);
            Ok(Response::new(messages(results)))
        })
    }

    fn list_actions(&self, _: Request<Empty>) -> Answered<'_, Messages<ActionType>> {
        let actions = ACTIONS.map(|(name, description)| ActionType {
            r#type: name.to_owned(),
            description: description.to_owned(),
        });
        Box::pin(ready(Ok(Response::new(messages(actions)))))
    }

    fn list_flights(&self, _: Request<Criteria>) -> Answered<'_, Messages<FlightInfo>> {
        Box::pin(ready(Err(unsupported("ListFlights"))))
    }

    fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Answered<'_, PollInfo> {
        Box::pin(ready(Err(unsupported("PollFlightInfo"))))
    }

    fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Answered<'_, Messages<FlightData>> {
        Box::pin(ready(Err(unsupported("DoExchange"))))
    }
}

fn command(bytes: &Bytes) -> Result<Command, Status> {
    let any = Any::decode(bytes.clone()).map_err(malformed)?;
    Command::try_from(any).map_err(malformed)
}

fn unpacked<M: ProstMessageExt>(action: &Action) -> Result<M, Status> {
    let any = Any::decode(action.body.clone()).map_err(malformed)?;
    let message = any.unpack().map_err(malformed)?;
    message.ok_or_else(|| malformed(format!("{} is not the action's message", any.type_url)))
}

fn check_no_transaction(transaction: Option<&Bytes>) -> Result<(), Status> {
    match transaction.is_none_or(Bytes::is_empty) {
        true => Ok(()),
        false => Err(unsupported("a transaction of Flight SQL")),
    }
}

fn text(handle: &Bytes) -> Result<String, Status> {
    String::from_utf8(handle.to_vec()).map_err(malformed)
}

fn handle(query: &CommandPreparedStatementQuery) -> Result<String, Status> {
    text(&query.prepared_statement_handle)
}

fn schema_bytes(columns: &Schema) -> Result<Bytes, Status> {
    let message = SchemaAsIpc::new(columns, &IpcWriteOptions::default()).try_into();
    let IpcMessage(bytes) = message.map_err(defect)?;
    Ok(bytes)
}

/// Future of an answer.
type Answered<'all, Answer> = BoxFuture<'all, Result<Response<Answer>, Status>>;

/// Calls, each by the method of the same name. An `async fn` of the trait has bounds between its lifetimes. For each,
/// rustc computes again whether all that a session holds may move to another thread, in 4 s.
macro_rules! calls {
    ($($call:ident($request:ty) -> $answer:ty;)*) => {$(
        fn $call<'service, 'all>(
            &'service self,
            request: Request<$request>,
        ) -> Answered<'all, $answer>
        where
            'service: 'all,
            Self: 'all,
        {
            Service::$call(self, request)
        }
    )*};
}

impl FlightService for Service {
    type HandshakeStream = Messages<HandshakeResponse>;
    type ListFlightsStream = Messages<FlightInfo>;
    type DoGetStream = Messages<FlightData>;
    type DoPutStream = Messages<PutResult>;
    type DoExchangeStream = Messages<FlightData>;
    type DoActionStream = Messages<arrow_flight::Result>;
    type ListActionsStream = Messages<ActionType>;

    calls! {
        handshake(Streaming<HandshakeRequest>) -> Messages<HandshakeResponse>;
        get_flight_info(FlightDescriptor) -> FlightInfo;
        get_schema(FlightDescriptor) -> SchemaResult;
        do_get(Ticket) -> Messages<FlightData>;
        do_put(Streaming<FlightData>) -> Messages<PutResult>;
        do_action(Action) -> Messages<arrow_flight::Result>;
        list_actions(Empty) -> Messages<ActionType>;
        list_flights(Criteria) -> Messages<FlightInfo>;
        poll_flight_info(FlightDescriptor) -> PollInfo;
        do_exchange(Streaming<FlightData>) -> Messages<FlightData>;
    }
}
