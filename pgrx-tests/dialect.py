#!/usr/bin/env python3
"""Checks the script for YugabyteDB for features that YugabyteDB lacks, and for statements that make a tablet hot.

    PYTHONPATH=<where servers.py put pglast> dialect.py FILE

Every statement is parsed by libpg_query, also those in the bodies of functions, and those that functions assemble as
text, as far as the text is constant. If a function is replaced later in the script, the last definition counts. Findings
are printed as "rule: where: what", one a line.
"""

import json
import re
import sys

import pglast

# System columns of PostgreSQL. Some catalogs have ordinary columns of these names: the exceptions, with reasons.
SYSTEM_COLUMNS = {"ctid", "xmin", "xmax", "cmin", "cmax"}
MAY = {("queue.health", "xmin"): "a column of pg_replication_slots"}
# Only features that YugabyteDB has, under their PostgreSQL names.
INDEX_METHODS = {"btree", "hash", "gin"}
ADVISORY = re.compile(r"^pg_(try_)?advisory_|^pg_(listening_channels|notification_queue_usage|notify)$")
# So many numbers a session takes at once.
CACHE = 100

found = []


def complain(rule, where, what):
    found.append(f"{rule}: {where}: {what}")


def walk(node):
    """Every node of a tree, as (kind, fields)."""
    if isinstance(node, list):
        for one in node:
            yield from walk(one)
    elif isinstance(node, dict):
        for kind, fields in node.items():
            if isinstance(fields, dict):
                yield kind, fields
            yield from walk(fields)


def words(nodes):
    return [node["String"]["sval"] for node in nodes if "String" in node]


def columns(node):
    """The last parts of all columns that are mentioned."""
    return {words(fields["fields"])[-1] for kind, fields in walk(node) if kind == "ColumnRef" and words(fields["fields"])}


def relation(fields):
    return f"{fields.get('schemaname', '')}.{fields.get('relname', '')}"


def check_node(kind, fields, where):
    if kind == "LockStmt":
        complain("lock-table", where, "LOCK TABLE")
    elif kind in ("NotifyStmt", "ListenStmt", "UnlistenStmt"):
        complain("notify", where, kind)
    elif kind == "CreateTrigStmt" and fields.get("transitionRels"):
        complain("transition-tables", where, f"trigger {fields['trigname']} has REFERENCING")
    elif kind == "CreateStmt":
        check_table(fields, where)
    elif kind == "Constraint":
        if fields.get("contype") == "CONSTR_EXCLUSION":
            complain("exclusion", where, "an exclusion constraint")
        elif fields.get("contype") == "CONSTR_GENERATED":
            complain("generated", where, "a column GENERATED ALWAYS AS STORED")
        elif fields.get("deferrable") or fields.get("contype") == "CONSTR_ATTR_DEFERRABLE":
            complain("deferrable", where, "a constraint that can be deferred")
        elif fields.get("contype") == "CONSTR_FOREIGN" or "pktable" in fields:
            complain("foreign-key", where, "a foreign key, which every write would look up on another tablet")
    elif kind == "IndexStmt":
        check_index(fields, where)
    elif kind == "RuleStmt":
        complain("rule", where, "CREATE RULE")
    elif kind == "ColumnRef":
        name = (words(fields["fields"]) or [""])[-1]
        if name in SYSTEM_COLUMNS and (where, name) not in MAY:
            complain("system-column", where, name)
    elif kind == "FuncCall" and ADVISORY.match(words(fields["funcname"])[-1]):
        name = words(fields["funcname"])[-1]
        complain("notify" if "notif" in name or "listen" in name else "advisory-lock", where, name)
    elif kind == "SelectStmt":
        check_order(fields, where)
    elif kind == "MergeStmt":
        complain("merge", where, "MERGE")


def check_table(fields, where):
    name = relation(fields["relation"])
    if fields["relation"].get("relpersistence", "p") != "p":
        complain("unlogged", where, f"table {name} is temporary or unlogged")
    if fields.get("inhRelations") and not fields.get("partbound"):
        complain("inheritance", where, f"table {name} inherits")


def check_index(fields, where):
    name = fields.get("idxname")
    method = fields.get("accessMethod", "btree")
    if method not in INDEX_METHODS:
        complain("index-method", where, f"index {name} is of kind {method}")
    if relation(fields["relation"]) == "queue.tasks":
        first = fields["indexParams"][0]["IndexElem"].get("name")
        # Its first column is hashed. That of what all claims go through may not be the queue's name.
        if first not in ("id", "bucket", "group_key"):
            complain("hot-tablet", where, f"index {name} begins with {first}")
    elif fields["indexParams"][0]["IndexElem"].get("name", "").endswith("_at") and "keys" not in relation(fields["relation"]):
        complain("hot-tablet", where, f"index {name} begins with a time")


def check_order(fields, where):
    """Whoever walks the order of claims does so in one bucket."""
    tables = {relation(table) for kind, table in walk(fields.get("fromClause", [])) if kind == "RangeVar"}
    condition = fields.get("whereClause")
    if "queue.tasks" not in tables or condition is None:
        return
    # queue_internal.task_in_bucket() is replaced by a condition on the column.
    bounds = columns(condition) | {words(fields["funcname"])[-1] for kind, fields in walk(condition) if kind == "FuncCall"}
    if "admission" in columns(condition) and not {"bucket", "group_key", "id", "task_in_bucket"} & bounds:
        complain("bucket", where, "looks for open tasks in all buckets at once")


def check_sequences(statements):
    """A sequence that is not cached costs a write to a majority for each number."""
    caches = {}
    for kind, fields in (pair for tree in statements for pair in walk(tree)):
        if kind in ("CreateSeqStmt", "AlterSeqStmt"):
            options = {one["DefElem"]["defname"]: one["DefElem"].get("arg") for one in fields.get("options", [])}
            cache = (options.get("cache") or {}).get("Integer", {}).get("ival", 0)
            name = relation(fields["sequence"])
            caches[name] = max(cache, caches.get(name, 0))
        elif kind == "CreateStmt":
            for element, column in walk(fields.get("tableElts", [])):
                if element == "ColumnDef" and any(
                        one.get("Constraint", {}).get("contype") == "CONSTR_IDENTITY"
                        for one in column.get("constraints", [])):
                    table = fields["relation"]
                    name = f"{table['schemaname']}.{table['relname']}_{column['colname']}_seq"
                    caches.setdefault(name, 0)
    for name, cache in caches.items():
        if cache < CACHE:
            complain("sequence-cache", name, f"caches {cache}")


def body_of(statement):
    """The statements and expressions in a body in PL/pgSQL."""
    # The parser for PL/pgSQL knows no composite types: where it would refuse an assignment, it gets a PERFORM.
    text = re.sub(r"^(\s+)(\w+\.\w+ :=|RETURN NEXT(?= \w+\.))", r"\1PERFORM", statement, flags=re.MULTILINE)
    for kind, fields in walk(json.loads(pglast.parser.parse_plpgsql_json(text))):
        if kind == "PLpgSQL_expr":
            yield fields["query"]


def parse_inner(text):
    """An expression stands for itself, or after SELECT; an assignment has its right side looked at."""
    for attempt in (text, f"SELECT {text}", "SELECT " + text.partition(":=")[2]):
        try:
            return json.loads(pglast.parser.parse_sql_json(attempt))
        except pglast.parser.ParseError:
            pass
    return None


def texts_in(tree):
    """Constants that are statements: what EXECUTE puts together begins with one."""
    for kind, fields in walk(tree):
        if kind == "A_Const" and "sval" in fields:
            text = fields["sval"].get("sval", "")
            if re.match(r"(?i)\s*(create|alter|drop|lock|truncate|notify|listen|select|insert|update|delete|with)\b", text):
                yield text


def check_tree(tree, where):
    for kind, fields in walk(tree):
        check_node(kind, fields, where)
    for text in texts_in(tree):
        words_of = text.upper().split()
        if words_of[:2] == ["LOCK", "TABLE"]:
            complain("lock-table", where, "LOCK TABLE, as text")
        elif words_of[0] in ("NOTIFY", "LISTEN"):
            complain("notify", where, f"{words_of[0]}, as text")


def main():
    with open(sys.argv[1], encoding="utf8") as file:
        statements = pglast.split(file.read())
    functions, others, trees, inner, unread = {}, [], [], 0, 0
    for statement in statements:
        tree = json.loads(pglast.parser.parse_sql_json(statement))["stmts"][0]["stmt"]
        trees.append(tree)
        if "CreateFunctionStmt" in tree:
            fields = tree["CreateFunctionStmt"]
            parameters = [one["FunctionParameter"] for one in fields.get("parameters", [])]
            types = [(words(one["argType"]["names"])[-1], len(one["argType"].get("arrayBounds", []))) for one in parameters
                     if one.get("mode") not in ("FUNC_PARAM_OUT", "FUNC_PARAM_TABLE")]
            functions[json.dumps([words(fields["funcname"]), types])] = (".".join(words(fields["funcname"])), statement, tree)
        else:
            others.append(tree)
    for tree in others:
        check_tree(tree, next(iter(tree)))
        for block in (one["DefElem"]["arg"]["String"]["sval"] for one in tree.get("DoStmt", {}).get("args", [])
                      if one["DefElem"]["defname"] == "as"):
            functions[block] = ("DO", *as_function(block))
    for name, statement, tree in functions.values():
        check_tree(tree, name)
        language = [one["DefElem"]["arg"]["String"]["sval"] for one in tree["CreateFunctionStmt"]["options"]
                    if one["DefElem"]["defname"] == "language"]
        bodies = body_of(statement) if language == ["plpgsql"] else texts_in_body(tree)
        for text in bodies:
            inside = parse_inner(text)
            inner += 1
            if inside is None:
                unread += 1
                complain("unread", name, text)
            else:
                check_tree(inside, name)
    check_sequences(trees)
    print(f"{len(statements)} statements, {len(functions)} functions with {inner} statements and expressions")
    print("\n".join(sorted(set(found))))
    sys.exit(1 if found else 0)


def as_function(block):
    """A DO block as a function, and that function's tree."""
    statement = f"CREATE FUNCTION block() RETURNS void LANGUAGE plpgsql AS $block${block}$block$"
    return statement, json.loads(pglast.parser.parse_sql_json(statement))["stmts"][0]["stmt"]


def texts_in_body(tree):
    """The body of a function in SQL that is a text; that which is parsed with the function is in its tree."""
    for option in tree["CreateFunctionStmt"]["options"]:
        if option["DefElem"]["defname"] == "as":
            yield from (one for one in words(option["DefElem"]["arg"]["List"]["items"]))


main()
