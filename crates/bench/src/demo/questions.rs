//! The SQL queries of the demonstration, as data.

/// A question and the query that answers it.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The question in plain words.
    pub text: &'static str,
    /// The query. The first row of its answer is shown.
    pub sql: &'static str,
}

/// A question about the collection of package names.
pub const NAMES: [Question; 1] = [Question {
    text: "How many packages have `webpack` in their name?",
    sql: "SELECT count(*) FROM documents.demo.names WHERE name LIKE '%webpack%'",
}];

/// A question about the collection of films.
pub const MOVIES: [Question; 1] = [Question {
    text: "Whose films are liked most, of five or more?",
    sql: "SELECT \"Director\", count(*) AS films, round(avg(\"IMDB Rating\"), 2) AS rating \
          FROM documents.demo.movies WHERE \"Director\" IS NOT NULL \
          GROUP BY \"Director\" HAVING count(*) >= 5 ORDER BY rating DESC, \"Director\"",
}];

/// Questions about flights in the United States in 2001: a Parquet file and a CSV file.
pub const FLIGHTS: [Question; 2] = [
    Question {
        text: "Which airport had the most flights?",
        sql: "SELECT a.city, a.name, count(*) AS flights FROM airports a JOIN flights f ON a.iata = f.origin \
              GROUP BY a.city, a.name ORDER BY flights DESC, a.name",
    },
    Question {
        text: "On which busy route are flights latest?",
        sql: "SELECT origin, destination, count(*) AS flights, round(avg(delay), 1) || ' minutes' AS mean \
              FROM flights GROUP BY origin, destination HAVING count(*) >= 2000 \
              ORDER BY avg(delay) DESC, origin, destination",
    },
];

/// Questions about the orders of TPC-H: a Parquet file per table.
pub const ORDERS: [Question; 2] = [
    Question {
        text: "What was sold, what came back, for how much?",
        sql: "SELECT l_returnflag, l_linestatus, count(*) AS lines, sum(l_extendedprice * (1 - l_discount)) AS revenue \
              FROM lineitem WHERE l_shipdate <= date '1998-09-02' GROUP BY l_returnflag, l_linestatus \
              ORDER BY revenue DESC",
    },
    Question {
        text: "Which nation of Asia buys most at home?",
        sql: "SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue \
              FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey \
              JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey \
              JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey \
              WHERE r_name = 'ASIA' GROUP BY n_name ORDER BY revenue DESC",
    },
];
