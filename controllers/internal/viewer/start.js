SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#description",
  deepLinking: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  persistAuthorization: false, // a token must not outlive the page
  validatorUrl: null, // it would send the description elsewhere
});
