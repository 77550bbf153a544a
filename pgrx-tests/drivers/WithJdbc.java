// Makes the calls that it reads with JDBC, in the mode that its argument names (calls.py says how they are written).

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

public class WithJdbc {
    static void bind(Connection db, PreparedStatement statement, int index, String text) throws SQLException {
        String value = text.substring(2);
        switch (text.charAt(0)) {
            case 'i' -> statement.setInt(index, Integer.parseInt(value));
            case 'b' -> statement.setLong(index, Long.parseLong(value));
            case 'a' -> statement.setArray(index, db.createArrayOf("jsonb", value.split("\u001f")));
            default -> statement.setString(index, value);
        }
    }

    static String call(Connection db, String[] parts) {
        try (PreparedStatement statement = db.prepareStatement(parts[0].replaceAll("\\$\\d", "?"))) {
            for (int i = 1; i < parts.length; i++) bind(db, statement, i, parts[i]);
            StringBuilder told = new StringBuilder("ok");
            ResultSet rows = statement.executeQuery();
            while (rows.next()) {
                for (int i = 1; i <= rows.getMetaData().getColumnCount(); i++) {
                    Object value = rows.getObject(i);
                    String type = value == null ? "null" : value.getClass().getSimpleName();
                    told.append('\t').append(type).append('=').append(value);
                }
            }
            return told.toString();
        } catch (SQLException error) {
            return "error\t" + error.getSQLState();
        }
    }

    public static void main(String[] arguments) throws Exception {
        String options = switch (arguments[0]) {
            case "prepared" -> "&prepareThreshold=1";
            case "simple" -> "&preferQueryMode=simple";
            // Through PgBouncer, whose server connections do not know each other's statements.
            default -> "&prepareThreshold=0";
        };
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (Connection db = DriverManager.getConnection(System.getenv("DATABASE_URL") + options)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (!line.isEmpty()) System.out.println(call(db, line.split("\t")));
            }
        }
    }
}
