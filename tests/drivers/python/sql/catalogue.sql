-- What graphical clients ask of the catalogue before they show a table, in the constructs of each, with our own words.
-- A line `-- CLIENT: ...` begins the queries of a client.

-- DBeaver: its start
SET extra_float_digits = 3;
SET application_name = 'DBeaver 25.1.5 - Main <postgres>';
SELECT current_schema(), session_user;
SHOW search_path;
SELECT version();
SELECT db.oid, db.* FROM pg_catalog.pg_database db WHERE datname = 'forebay';
SELECT * FROM pg_catalog.pg_settings WHERE name = 'standard_conforming_strings';
SELECT string_agg(word, ',') FROM pg_catalog.pg_get_keywords() WHERE word <> ALL ('{select,from,where}'::text[]);
SELECT * FROM pg_catalog.pg_enum WHERE 1 <> 1 LIMIT 1;
SELECT reltype FROM pg_catalog.pg_class WHERE 1 <> 1 LIMIT 1;
SELECT n.oid, n.*, d.description
FROM pg_catalog.pg_namespace n
LEFT OUTER JOIN pg_catalog.pg_description d
  ON d.objoid = n.oid AND d.objsubid = 0 AND d.classoid = 'pg_namespace'::regclass
ORDER BY nspname;
SELECT t.oid, t.*, c.relkind, format_type(nullif(t.typbasetype, 0), t.typtypmod) AS base_type_name, d.description
FROM pg_catalog.pg_type t
LEFT OUTER JOIN pg_catalog.pg_type et ON et.oid = t.typelem
LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
LEFT OUTER JOIN pg_catalog.pg_description d ON t.oid = d.objoid
WHERE t.typname IS NOT NULL AND (c.relkind IS NULL OR c.relkind = 'c')
  AND (et.typcategory IS NULL OR et.typcategory <> 'C');

-- DBeaver: a schema is opened
SELECT c.oid, c.*, d.description
FROM pg_catalog.pg_class c
LEFT OUTER JOIN pg_catalog.pg_description d
  ON d.objoid = c.oid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'public')
  AND c.relkind NOT IN ('i', 'I', 'c');
SELECT c.relname, a.*, pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) AS def_value, dsc.description
FROM pg_catalog.pg_attribute a
INNER JOIN pg_catalog.pg_class c ON a.attrelid = c.oid
LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON a.attrelid = ad.adrelid AND a.attnum = ad.adnum
LEFT OUTER JOIN pg_catalog.pg_description dsc ON c.oid = dsc.objoid AND a.attnum = dsc.objsubid
WHERE NOT a.attisdropped AND c.relname = 'people'
ORDER BY a.attnum;
SELECT c.oid, c.*, t.relname AS tabrelname, rt.relnamespace AS refnamespace, d.description
FROM pg_catalog.pg_constraint c
INNER JOIN pg_catalog.pg_class t ON t.oid = c.conrelid
LEFT OUTER JOIN pg_catalog.pg_class rt ON rt.oid = c.confrelid
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid = c.oid
WHERE t.relname = 'people'
ORDER BY c.oid;
SELECT i.*, i.indkey AS keys, c.relname, c.relnamespace, c.relam, c.reltablespace
FROM pg_catalog.pg_index i
INNER JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
INNER JOIN pg_catalog.pg_class tc ON tc.oid = i.indrelid
WHERE tc.relname = 'people'
ORDER BY tc.relname, c.relname;

-- DBeaver: the driver asks for an array's type
SELECT n.nspname = ANY (current_schemas(true)), n.nspname, t.typname
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid
WHERE t.oid = 1034;
SELECT typinput = 'pg_catalog.array_in'::regproc AS is_array, typtype, typname, pg_type.oid
FROM pg_catalog.pg_type
LEFT JOIN (
  SELECT ns.oid AS nspoid, ns.nspname, r.r
  FROM pg_namespace AS ns
  JOIN (
    SELECT s.r, (current_schemas(false))[s.r] AS nspname
    FROM generate_series(1, array_upper(current_schemas(false), 1)) AS s (r)
  ) AS r USING (nspname)
) AS sp ON sp.nspoid = typnamespace
WHERE pg_type.oid = 1034
ORDER BY sp.r, pg_type.oid DESC;

-- Metabase: its start
SHOW TRANSACTION ISOLATION LEVEL;
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
SHOW timezone;
SELECT nspname AS "TABLE_SCHEM", current_database() AS "TABLE_CATALOG"
FROM pg_catalog.pg_namespace
WHERE nspname <> 'pg_toast'
  AND (nspname !~ '^pg_temp_' OR nspname = (pg_catalog.current_schemas(true))[1])
  AND (nspname !~ '^pg_toast_temp_'
    OR nspname = replace((pg_catalog.current_schemas(true))[1], 'pg_temp_', 'pg_toast_temp_'))
ORDER BY "TABLE_SCHEM";

-- Metabase: rights and tables
WITH rights AS (
  SELECT NULL AS role, t.schemaname AS schema, t.objectname AS table,
    pg_catalog.has_any_column_privilege(
      current_user, '"' || replace(t.schemaname, '"', '""') || '"."' || replace(t.objectname, '"', '""') || '"',
      'select'
    ) AS select,
    pg_catalog.has_table_privilege(
      current_user, '"' || replace(t.schemaname, '"', '""') || '"."' || replace(t.objectname, '"', '""') || '"',
      'delete'
    ) AS delete
  FROM (
    SELECT schemaname, tablename AS objectname FROM pg_catalog.pg_tables
    UNION
    SELECT schemaname, viewname AS objectname FROM pg_catalog.pg_views
    UNION
    SELECT schemaname, matviewname AS objectname FROM pg_catalog.pg_matviews
  ) t
  WHERE t.schemaname !~ '^pg_' AND t.schemaname <> 'information_schema'
    AND pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage')
)
SELECT t.* FROM rights t;
SELECT "n"."nspname" AS "schema", "c"."relname" AS "name",
  CASE "c"."relkind" WHEN 'r' THEN 'TABLE' WHEN 'v' THEN 'VIEW' WHEN 'f' THEN 'FOREIGN TABLE' ELSE NULL END AS "type",
  "d"."description" AS "description", "stat"."n_live_tup" AS "estimated_row_count"
FROM "pg_catalog"."pg_class" AS "c"
INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "c"."relnamespace" = "n"."oid"
LEFT JOIN "pg_catalog"."pg_description" AS "d"
  ON "c"."oid" = "d"."objoid" AND "d"."objsubid" = '0' AND "d"."classoid" = 'pg_class'::regclass
LEFT JOIN "pg_stat_user_tables" AS "stat"
  ON "n"."nspname" = "stat"."schemaname" AND "c"."relname" = "stat"."relname"
WHERE "n"."nspname" !~ '^pg_' AND "n"."nspname" <> 'information_schema' AND c.relkind IN ('r', 'p', 'v', 'f', 'm')
  AND "n"."nspname" IN ('public')
ORDER BY "type" ASC, "schema" ASC, "name" ASC;
SELECT c.column_name AS name, c.data_type AS "database-type", c.ordinal_position - 1 AS "database-position",
  c.is_nullable = 'YES' AS nullable, c.column_default AS default
FROM information_schema.columns c
WHERE c.table_schema !~ '^information_schema|catalog_history|pg_' AND c.table_schema IN ('public')
ORDER BY c.table_schema, c.table_name, c.ordinal_position;

-- Grafana: its start
SELECT current_setting('server_version_num')::int / 100 AS version;
SELECT extversion FROM pg_extension WHERE extname = 'timescaledb';

-- Grafana: tables and their columns
SELECT quote_ident(table_name) AS "table"
FROM information_schema.tables
WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog', '_timescaledb_cache')
ORDER BY 1;
SELECT quote_ident(column_name) AS "column", data_type AS "type"
FROM information_schema.columns
WHERE CASE WHEN array_length(parse_ident('public.people'), 1) = 2
  THEN quote_ident(table_schema) = (parse_ident('public.people'))[1]
    AND quote_ident(table_name) = (parse_ident('public.people'))[2]
  ELSE quote_ident(table_name) = 'people' END;

-- pgAdmin: its start
SET client_encoding = 'UTF8';
SET DateStyle = ISO;
SET client_min_messages = notice;
SELECT set_config('bytea_output', 'hex', false) FROM pg_show_all_settings() WHERE name = 'bytea_output';
SELECT CASE
    WHEN (SELECT count(extname) FROM pg_catalog.pg_extension WHERE extname = 'bdr') > 0 THEN 'pgd'
    WHEN (SELECT count(*) FROM pg_replication_slots) > 0 THEN 'log'
    ELSE NULL
  END AS type;
SELECT db.oid AS did, db.datname, db.datallowconn, pg_encoding_to_char(db.encoding) AS serverencoding,
  has_database_privilege(db.oid, 'CREATE') AS cancreate, datistemplate
FROM pg_catalog.pg_database db
WHERE db.datname = current_database();
SELECT roles.oid AS id, roles.rolname AS name, roles.rolsuper AS is_superuser,
  CASE WHEN roles.rolsuper THEN true ELSE roles.rolcreaterole END AS can_create_role,
  CASE WHEN roles.rolsuper THEN true ELSE roles.rolcreatedb END AS can_create_db
FROM pg_catalog.pg_roles AS roles
WHERE rolname = current_user;
SELECT gss_authenticated, encrypted FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_backend_pid();

-- pgAdmin: a schema and a table are opened
SELECT nsp.oid, nsp.nspname AS name, has_schema_privilege(nsp.oid, 'CREATE') AS can_create,
  has_schema_privilege(nsp.oid, 'USAGE') AS has_usage
FROM pg_catalog.pg_namespace nsp
WHERE nspname NOT LIKE 'pg\_%' AND NOT nspname = 'information_schema'
ORDER BY nspname;
SELECT rel.oid, rel.relname AS name,
  (SELECT count(*) FROM pg_catalog.pg_trigger WHERE tgrelid = rel.oid) AS triggercount
FROM pg_catalog.pg_class rel
WHERE rel.relkind IN ('r', 's', 't', 'p') AND rel.relnamespace = 2200 AND NOT rel.relispartition
ORDER BY rel.relname;
SELECT att.attname AS name, att.attnum, att.atttypid, format_type(att.atttypid, att.atttypmod) AS cltype,
  att.attnotnull, att.atthasdef
FROM pg_catalog.pg_attribute att
WHERE att.attrelid = 'people'::regclass AND att.attnum > 0 AND NOT att.attisdropped
ORDER BY att.attnum;
