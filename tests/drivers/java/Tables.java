import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Time;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.TimeZone;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;
import org.postgresql.PGStatement;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PSQLException;

/** The tables door with PostgreSQL's JDBC driver. Every public method without parameters is a test. */
public final class Tables {
    private static final String ENDLESS =
            "SELECT count(*) FROM generate_series(1, 10000000) a, generate_series(1, 10000000) b";

    private final String url;

    private Tables(String url) {
        this.url = url;
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Files.createTempDirectory("forebay-java");
        Files.createDirectory(folder.resolve("files"));
        Files.writeString(folder.resolve("files/people.csv"), "name,age\nAda,36\nAlan,41\nGrace,\n");
        Process server = new ProcessBuilder(System.getenv("FOREBAY"), "serve", "--mongodb-listen", "127.0.0.1:0",
                "--postgres-listen", "127.0.0.1:0", "--data", folder.resolve("data").toString(),
                "--tables", folder.resolve("files").toString()).redirectErrorStream(true).start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> end(server, folder)));
        TimeZone.setDefault(TimeZone.getTimeZone("America/New_York"));
        Tables tests = new Tables("jdbc:postgresql://" + address(server) + "/forebay?user=ada");
        int count = 0, failures = 0;
        for (Method test : Tables.class.getDeclaredMethods()) {
            if (!java.lang.reflect.Modifier.isPublic(test.getModifiers()) || test.getParameterCount() > 0) {
                continue;
            }
            count += 1;
            try {
                test.invoke(tests);
            } catch (InvocationTargetException failure) {
                failures += 1;
                System.out.println("FAILED: " + test.getName());
                failure.getCause().printStackTrace(System.out);
            }
        }
        System.out.println("Java: " + (count - failures) + " of " + count + " tests passed");
        System.exit(failures == 0 && count > 0 ? 0 : 1);
    }

    /** Returns the address that the server prints, and goes on to read what it prints. */
    private static String address(Process server) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(server.getInputStream()));
        String line;
        while ((line = lines.readLine()) != null) {
            int start = line.indexOf("postgresql://");
            if (start >= 0) {
                Thread reader = new Thread(() -> lines.lines().forEach(ignored -> {}));
                reader.setDaemon(true);
                reader.start();
                return line.substring(start + "postgresql://".length()).split("[/ ]")[0];
            }
        }
        throw new IOException("the server did not listen");
    }

    private static void end(Process server, Path folder) {
        server.destroyForcibly().onExit().join();
        try (var files = Files.walk(folder)) {
            files.sorted((one, other) -> other.compareTo(one)).map(Path::toFile).forEach(File::delete);
        } catch (IOException error) {
            System.out.println(error);
        }
    }

    private Connection connect(String... options) throws SQLException {
        return DriverManager.getConnection(url + "&" + String.join("&", options));
    }

    private static void same(Object found, Object expected) {
        if (!Objects.deepEquals(found, expected)) {
            throw new AssertionError("found " + text(found) + ", not " + text(expected));
        }
    }

    private static String text(Object value) {
        return value instanceof Object[] array ? Arrays.deepToString(array) : String.valueOf(value);
    }

    private interface Work {
        void run() throws SQLException, IOException;
    }

    /** Runs what must fail with a code. */
    private static SQLException fails(String state, Work work) throws IOException {
        try {
            work.run();
        } catch (SQLException error) {
            if (!state.equals(error.getSQLState())) {
                throw new AssertionError("not " + state + " but " + error.getSQLState(), error);
            }
            return error;
        }
        throw new AssertionError("no error " + state);
    }

    private static List<Object> column(ResultSet rows, int column) throws SQLException {
        List<Object> values = new ArrayList<>();
        while (rows.next()) {
            values.add(rows.getObject(column));
        }
        return values;
    }

    private static List<Object> query(Connection connection, String text) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(text)) {
            return column(rows, 1);
        }
    }

    /** The parameters and results of one statement, in text for the first executions, then in binary. */
    public void everyTypeReturnsAsItWasSent() throws SQLException {
        String[] types = {"smallint", "int", "bigint", "real", "double precision", "numeric(20,4)", "text", "varchar",
            "boolean", "bytea", "date", "time", "timestamp", "timestamptz", "int[]", "text[]", "float8[]"};
        try (Connection connection = connect()) {
            Object[] values = {(short) -7, 1 << 30, Long.MIN_VALUE, 1.5f, Math.PI, new BigDecimal("-12345.6700"),
                "é\n'\\", "x", true, new byte[] {0, 1, -1}, LocalDate.of(1969, 7, 20),
                LocalTime.of(23, 59, 59, 123_456_000), LocalDateTime.of(2026, 1, 31, 12, 0, 1, 5_000),
                OffsetDateTime.parse("2026-07-01T10:00:00.25Z"),
                connection.createArrayOf("int4", new Integer[] {1, null, 3}),
                connection.createArrayOf("text", new String[] {"a,\"b", null, ""}),
                connection.createArrayOf("float8", new Double[] {0.1, Double.NaN})};
            StringBuilder text = new StringBuilder("SELECT ");
            for (String type : types) {
                text.append(text.length() > 7 ? ", " : "").append("?::").append(type);
            }
            try (PreparedStatement statement = connection.prepareStatement(text.toString())) {
                for (int round = 0; round < 12; round++) {
                    for (int index = 0; index < values.length; index++) {
                        statement.setObject(index + 1, values[index]);
                    }
                    try (ResultSet rows = statement.executeQuery()) {
                        rows.next();
                        checkTypes(rows, values);
                    }
                }
                if (!statement.unwrap(PGStatement.class).isUseServerPrepare()) {
                    throw new AssertionError("the statement is not prepared after 12 executions");
                }
            }
        }
    }

    private static void checkTypes(ResultSet rows, Object[] values) throws SQLException {
        for (int index = 0; index < 10; index++) {
            Class<?> type = values[index] instanceof Short ? Integer.class : values[index].getClass();
            Object expected = values[index] instanceof Short number ? (Object) number.intValue() : values[index];
            same(rows.getObject(index + 1, type), expected);
        }
        same(rows.getObject(11, LocalDate.class), values[10]);
        same(rows.getObject(12, LocalTime.class), values[11]);
        same(rows.getObject(13, LocalDateTime.class), values[12]);
        same(rows.getObject(14, OffsetDateTime.class).toInstant(), ((OffsetDateTime) values[13]).toInstant());
        for (int index = 14; index < values.length; index++) {
            same(rows.getArray(index + 1).getArray(), ((java.sql.Array) values[index]).getArray());
        }
    }

    public void nullsAndOldTypesArrive() throws SQLException {
        String text = "SELECT ?::int, ?::text, ?::date, ?::time, ?::timestamp, ?::timestamptz, ?::text, ?::interval";
        Timestamp moment = Timestamp.valueOf("2026-03-08 03:30:00.5");
        UUID id = UUID.fromString("00112233-4455-6677-8899-aabbccddeeff");
        try (Connection connection = connect("prepareThreshold=2");
                PreparedStatement statement = connection.prepareStatement(text)) {
            for (int round = 0; round < 4; round++) {
                statement.setNull(1, Types.INTEGER);
                statement.setNull(2, Types.VARCHAR);
                statement.setDate(3, Date.valueOf("2026-02-28"));
                statement.setTime(4, Time.valueOf("01:02:03"));
                statement.setTimestamp(5, moment);
                statement.setTimestamp(6, moment);
                statement.setObject(7, id);
                statement.setObject(8, new PGInterval("1 year 2 mons 3 days 04:05:06"));
                try (ResultSet rows = statement.executeQuery()) {
                    rows.next();
                    rows.getInt(1);
                    same(rows.wasNull(), true);
                    same(rows.getString(2), null);
                    same(rows.getDate(3), Date.valueOf("2026-02-28"));
                    same(rows.getTime(4), Time.valueOf("01:02:03"));
                    same(rows.getTimestamp(5), moment);
                    same(rows.getTimestamp(6), moment);
                    same(rows.getString(7), id.toString());
                    same(rows.getObject(8, PGInterval.class), new PGInterval("1 year 2 mons 3 days 04:05:06"));
                }
            }
        }
    }

    public void binaryResultsAreThoseOfText() throws SQLException {
        String text = "SELECT value::smallint, value, value * 10000000000, value / 4.0::float8 + 0.1,"
                + " value::numeric(10,3), repeat('x', value::int), value > 2, DATE '2000-01-01' + value::int,"
                + " TIMESTAMP '2026-01-01 00:00:00.5', TIMESTAMPTZ '2026-07-01 00:00:00Z', NULL"
                + " FROM generate_series(0, 4) WHERE value >= ?";
        List<String> texts = new ArrayList<>();
        for (String threshold : new String[] {"0", "-1", "1"}) {
            try (Connection connection = connect("prepareThreshold=" + threshold);
                    PreparedStatement statement = connection.prepareStatement(text)) {
                statement.setInt(1, 0);
                StringBuilder all = new StringBuilder();
                for (int round = 0; round < 2; round++) {
                    all.setLength(0);
                    try (ResultSet rows = statement.executeQuery()) {
                        while (rows.next()) {
                            for (int column = 1; column <= 11; column++) {
                                all.append(rows.getString(column)).append('|');
                            }
                        }
                    }
                }
                texts.add(all.toString());
            }
        }
        same(texts.get(1), texts.get(0));
        same(texts.get(2), texts.get(0));
        String first = "0|0|0|0.1|0.000||f|2000-01-01|2026-01-01 00:00:00.5|2026-06-30 20:00:00-04|null|";
        same(texts.get(0).startsWith(first), true);
    }

    public void portalsStreamInTransactions() throws SQLException {
        try (Connection connection = connect()) {
            connection.setAutoCommit(false);
            try (Statement one = connection.createStatement(); Statement other = connection.createStatement()) {
                one.setFetchSize(100);
                other.setFetchSize(7);
                try (ResultSet rows = one.executeQuery("SELECT value FROM generate_series(1, 5000)");
                        ResultSet others = other.executeQuery("SELECT value FROM generate_series(1, 5000)")) {
                    for (int number = 1; number <= 5000; number++) {
                        same(rows.next() && others.next(), true);
                        same(rows.getLong(1), (long) number);
                        same(others.getLong(1), (long) number);
                    }
                    same(rows.next() || others.next(), false);
                }
                try (ResultSet rows = one.executeQuery("SELECT value FROM generate_series(1, 1000000000)")) {
                    same(rows.next(), true);
                }
                same(query(connection, "SELECT 1"), List.of(1L));
            }
            connection.commit();
        }
    }

    public void scrollableResultsGoBack() throws SQLException {
        try (Connection connection = connect();
                Statement statement = connection.createStatement(
                        ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_READ_ONLY);
                ResultSet rows = statement.executeQuery("SELECT name FROM people ORDER BY name")) {
            same(rows.last(), true);
            same(rows.getString(1), "Grace");
            same(rows.absolute(1), true);
            same(rows.getString("name"), "Ada");
        }
    }

    public void metadataDescribesTables() throws SQLException {
        try (Connection connection = connect()) {
            DatabaseMetaData data = connection.getMetaData();
            same(data.getDatabaseProductName(), "PostgreSQL");
            same(connection.getCatalog(), "forebay");
            same(connection.getSchema(), "public");
            same(new TreeSet<>(column(data.getSchemas(), 1)).containsAll(
                    List.of("information_schema", "pg_catalog", "public")), true);
            same(column(data.getCatalogs(), 1).contains("forebay"), true);
            same(column(data.getTables(null, "public", "peop%", new String[] {"TABLE", "VIEW", "FOREIGN TABLE"}), 3),
                    List.of("people"));
            same(column(data.getTables(null, null, "people", null), 3), List.of("people"));
            same(column(data.getTableTypes(), 1).contains("TABLE"), true);
            try (ResultSet columns = data.getColumns(null, "public", "people", "%")) {
                columns.next();
                same(columns.getString("COLUMN_NAME"), "name");
                same(columns.getInt("DATA_TYPE"), Types.VARCHAR);
                columns.next();
                same(columns.getString("COLUMN_NAME"), "age");
                same(columns.getInt("DATA_TYPE"), Types.BIGINT);
                same(columns.getInt("ORDINAL_POSITION"), 2);
                same(columns.getString("TYPE_NAME"), "int8");
                same(columns.next(), false);
            }
            same(column(data.getTypeInfo(), 1).contains("int8"), true);
            column(data.getProcedures(null, null, "none"), 3);
            same(column(data.getPrimaryKeys(null, "public", "people"), 4), List.of());
            same(column(data.getImportedKeys(null, "public", "people"), 4), List.of());
            same(column(data.getExportedKeys(null, "public", "people"), 4), List.of());
            same(column(data.getIndexInfo(null, "public", "people", false, true), 6), List.of());
            same(column(data.getBestRowIdentifier(null, "public", "people", 0, true), 2), List.of());
            same(column(data.getTablePrivileges(null, "public", "people"), 6).contains("SELECT"), true);
            same(column(data.getColumnPrivileges(null, "public", "people", "age"), 7).contains("SELECT"), true);
            same(column(data.getFunctions(null, null, "abs"), 3).contains("abs"), true);
            column(data.getUDTs(null, null, "%", null), 3);
            column(data.getClientInfoProperties(), 1);
            same(data.getSQLKeywords().isEmpty(), false);
        }
    }

    public void statementsDescribeThemselves() throws SQLException {
        try (Connection connection = connect();
                PreparedStatement statement = connection.prepareStatement(
                        "SELECT name AS who, age FROM people WHERE age > ?")) {
            same(statement.getParameterMetaData().getParameterCount(), 1);
            same(statement.getParameterMetaData().getParameterType(1), Types.BIGINT);
            ResultSetMetaData columns = statement.getMetaData();
            same(columns.getColumnCount(), 2);
            same(columns.getColumnLabel(1), "who");
            same(columns.getColumnTypeName(2), "int8");
            statement.setLong(1, 40);
            same(column(statement.executeQuery(), 1), List.of("Alan"));
        }
    }

    public void severalStatementsAndBatchesRun() throws SQLException {
        try (Connection connection = connect(); Statement statement = connection.createStatement()) {
            same(statement.execute("SELECT 1; SET extra_float_digits = 2; SELECT 2"), true);
            same(column(statement.getResultSet(), 1), List.of(1L));
            same(statement.getMoreResults(), false);
            same(statement.getMoreResults(), true);
            same(column(statement.getResultSet(), 1), List.of(2L));
            for (int number = 0; number < 200; number++) {
                statement.addBatch("SELECT " + number);
            }
            same(statement.executeBatch().length, 200);
            String older = "SELECT count(*) FROM people WHERE age > ?";
            try (PreparedStatement prepared = connection.prepareStatement(older)) {
                for (int number = 0; number < 200; number++) {
                    prepared.setInt(1, number);
                    prepared.addBatch();
                }
                same(prepared.executeBatch().length, 200);
            }
            statement.clearBatch();
            statement.addBatch("SELECT 1");
            statement.addBatch("SELECT * FROM missing");
            statement.addBatch("SELECT 2");
            try {
                statement.executeBatch();
                throw new AssertionError("a batch with an error");
            } catch (BatchUpdateException error) {
                same(error.getSQLState(), "42P01");
            }
            same(query(connection, "SELECT 3"), List.of(3L));
        }
    }

    private static void cancel(Statement statement) {
        try {
            statement.cancel();
        } catch (SQLException error) {
            System.out.println(error);
        }
    }

    public void statementsAreCancelled() throws Exception {
        try (Connection connection = connect(); Statement statement = connection.createStatement()) {
            // A cancellation that comes too early has no effect, so that the timeout ends the statement.
            statement.execute("SET statement_timeout = 30000");
            var timer = Executors.newSingleThreadScheduledExecutor();
            timer.scheduleWithFixedDelay(() -> cancel(statement), 300, 300, TimeUnit.MILLISECONDS);
            fails("57014", () -> statement.executeQuery(ENDLESS));
            timer.shutdownNow();
            try (Connection fresh = connect(); Statement timed = fresh.createStatement()) {
                timed.setQueryTimeout(1);
                fails("57014", () -> timed.executeQuery(ENDLESS));
                timed.setQueryTimeout(0);
                timed.execute("SET statement_timeout = 200");
                fails("57014", () -> timed.executeQuery(ENDLESS));
                timed.execute("RESET statement_timeout");
                same(query(fresh, "SELECT 1"), List.of(1L));
            }
        }
    }

    public void errorsHaveCodesAndPositions() throws Exception {
        try (Connection connection = connect(); Statement statement = connection.createStatement()) {
            String[][] cases = {{"42P01", "SELECT * FROM missing"}, {"42601", "SELEC 1"}, {"22012", "SELECT 1 / 0"},
                {"42883", "SELECT no_such_function(1)"}, {"0A000", "DROP INDEX people"}, {"22P02", "SELECT 'x'::int"},
                {"42703", "SELECT nme FROM people"}};
            SQLException last = null;
            for (String[] each : cases) {
                last = fails(each[0], () -> column(statement.executeQuery(each[1]), 1));
            }
            same(((PSQLException) last).getServerErrorMessage().getPosition(), 8);
            connection.setAutoCommit(false);
            same(query(connection, "SELECT 1"), List.of(1L));
            Savepoint before = connection.setSavepoint("before");
            fails("42P01", () -> query(connection, "SELECT * FROM missing"));
            fails("25P02", () -> query(connection, "SELECT 1"));
            connection.rollback(before);
            same(query(connection, "SELECT 2"), List.of(2L));
            connection.releaseSavepoint(connection.setSavepoint());
            connection.commit();
        }
    }

    public void timesAreInTheZoneOfTheClient() throws SQLException {
        String text = "SELECT TIMESTAMPTZ '2026-07-01 12:00:00Z', ?::timestamptz";
        try (Connection connection = connect("prepareThreshold=3");
                PreparedStatement statement = connection.prepareStatement(text)) {
            same(query(connection, "SHOW TimeZone"), List.of("America/New_York"));
            Timestamp noon = Timestamp.from(OffsetDateTime.parse("2026-07-01T12:00:00Z").toInstant());
            for (int round = 0; round < 6; round++) {
                statement.setTimestamp(1, noon);
                try (ResultSet rows = statement.executeQuery()) {
                    rows.next();
                    same(rows.getTimestamp(1), noon);
                    same(rows.getTimestamp(2), noon);
                    same(rows.getString(1), "2026-07-01 08:00:00-04");
                }
            }
        }
    }

    public void transactionsReadOnly() throws Exception {
        for (String mode : new String[] {"ignore", "transaction", "always"}) {
            try (Connection connection = connect("readOnlyMode=" + mode)) {
                connection.setReadOnly(true);
                connection.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
                connection.setAutoCommit(false);
                same(query(connection, "SELECT count(*) FROM people"), List.of(3L));
                same(connection.getTransactionIsolation() > 0, true);
                try (Statement statement = connection.createStatement()) {
                    fails("25006", () -> statement.execute("CREATE VIEW seen AS SELECT 1 AS one"));
                }
                connection.rollback();
                same(connection.isValid(5), true);
            }
        }
    }

    public void managedTablesTakeRows() throws Exception {
        try (Connection connection = connect(); Statement statement = connection.createStatement()) {
            same(statement.executeUpdate("CREATE TABLE java_rows (a int NOT NULL, b text, c numeric(6, 2))"), 0);
            var copies = connection.unwrap(PGConnection.class).getCopyAPI();
            same(copies.copyIn("COPY java_rows FROM STDIN (FORMAT csv)", new StringReader("1,x,1.5\n2,,\n")), 2L);
            fails("22P02", () -> copies.copyIn("COPY java_rows FROM STDIN", new StringReader("x\ty\t1\n")));
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO java_rows VALUES (?, ?, ?)")) {
                for (int number = 3; number < 10; number++) {
                    insert.setInt(1, number);
                    insert.setString(2, "row " + number);
                    insert.setBigDecimal(3, new BigDecimal(number).movePointLeft(1));
                    insert.addBatch();
                }
                same(Arrays.stream(insert.executeBatch()).sum(), 7);
            }
            same(statement.executeUpdate("UPDATE java_rows SET b = 'y' WHERE a < 3"), 2);
            same(statement.executeUpdate("DELETE FROM java_rows WHERE a = 9"), 1);
            same(query(connection, "SELECT b FROM java_rows WHERE a IN (2, 8) ORDER BY a"), List.of("y", "row 8"));
            same(query(connection, "SELECT c FROM java_rows WHERE a = 8"), List.of(new BigDecimal("0.80")));
            statement.execute("DROP TABLE java_rows");
        }
    }

    public void copyWritesRows() throws Exception {
        try (Connection connection = connect()) {
            var copies = connection.unwrap(PGConnection.class).getCopyAPI();
            StringWriter text = new StringWriter(), csv = new StringWriter();
            same(copies.copyOut("COPY people TO STDOUT", text), 3L);
            same(text.toString(), "Ada\t36\nAlan\t41\nGrace\t\\N\n");
            same(copies.copyOut("COPY (SELECT * FROM people WHERE age > 40) TO STDOUT (FORMAT csv, HEADER)", csv), 1L);
            same(csv.toString(), "name,age\nAlan,41\n");
            fails("42P01", () -> copies.copyOut("COPY missing TO STDOUT", new StringWriter()));
            fails("42809", () -> copies.copyIn("COPY people FROM STDIN", new StringReader("x\t1\n")));
            same(query(connection, "SELECT 1"), List.of(1L));
        }
    }
}
